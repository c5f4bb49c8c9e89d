"""A run: every task, cell and optimizer of the table learns."""

from dataclasses import replace

import pytest
import torch

from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.run import Run

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=12, batch_size=8, length=20, evaluations=20, lr=0.01)
TASKS = {
    "char-lm": SMALL,
    "word-lm": replace(SMALL, task="word-lm", limit=6_000),
    "pixel-mnist": replace(SMALL, task="pixel-mnist", limit=200, length=None),
    "addition": replace(SMALL, task="addition", limit=200, length=10),
    "mlp": replace(SMALL, task="mlp", limit=200, length=None),
}


@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("optimizer", ["adaqn", "adam"])
def test_every_task_learns_something(task, optimizer):
    run = Run(replace(TASKS[task], optimizer=optimizer, steps=60))
    result = run.train()
    assert result["final"]["test_loss"] < run.metrics[0]["test_loss"]
    extra = {
        "char-lm": "test_bits",
        "word-lm": "test_perplexity",
        "pixel-mnist": "test_accuracy",
        "mlp": "test_accuracy",
    }
    assert task == "addition" or extra[task] in result["final"]


@pytest.mark.parametrize("model", ["tanh", "relu", "lstm", "gru"])
@pytest.mark.parametrize("carry_state", [False, True])
def test_every_cell_trains_with_state_carried_or_reset(model, carry_state):
    run = Run(replace(SMALL, model=model, carry_state=carry_state, steps=30))
    run.train()
    assert run.metrics[-1]["test_loss"] < run.metrics[0]["test_loss"]


@pytest.mark.parametrize("optimizer", [name for name, entry in TABLE.items() if not entry.whole])
def test_every_optimizer_of_the_table_trains(optimizer):
    run = Run(replace(SMALL, optimizer=optimizer, lr=None, steps=60))
    run.train()
    assert run.metrics[-1]["train_loss"] < run.metrics[0]["test_loss"]


def test_the_averaged_weights_are_their_exponential_average_and_are_evaluated_at_the_end():
    config = replace(SMALL, optimizer="adam", average=0.8)
    run = Run(config)
    expected = None
    for _ in range(config.steps):
        run.advance()
        now = [p.detach().double().clone() for p in run.model.parameters()]
        expected = now if expected is None else [0.8 * old + 0.2 * new for old, new in zip(expected, now, strict=True)]
    for ours, theirs in zip(run.average.module.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.detach().double(), theirs, rtol=1e-5, atol=1e-6)
    run.measure()
    final = run.metrics[-1]
    assert final["average_test_loss"] == run.task.evaluate(run.average.module, "test")["loss"]
    plain = Run(replace(config, average=None)).train()["final"]
    assert plain["test_loss"] == final["test_loss"], "averaging changes nothing else"
    assert "average_test_loss" not in plain
