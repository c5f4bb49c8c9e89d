"""Averages and weight decay as settings of a run, for every optimizer alike; evaluation never changes a run."""

from dataclasses import replace

import pytest
import torch
from laboratory import at_step, command, refused, same_run

from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.training.averages import GrowingAverage
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import finished
from adaqn.experiments.training.opening import open_run
from adaqn.experiments.training.parallel import run_one
from adaqn.experiments.training.run import Run

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=20, batch_size=8, length=20, evaluations=7, lr=0.01)
DECAYING = [name for name, entry in TABLE.items() if entry.decay != "none" and name != "prodigy"]
"""Prodigy makes no step from gradients of zero."""


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# ---------------------------------------------------------------------- the growing average


def test_the_average_is_that_of_the_formula():
    """Against the weights of all steps after the warm-up, in one sum."""
    run = open_run(replace(SMALL, optimizer="sgd", averaging=3.0, warm_up=4, dtype="float64"))
    steps = []
    for _ in range(12):
        run.advance()
        steps.append(flat(run.model))
    after = steps[4:]
    shares = [1.0] + [3.0 / (k + 3.0) for k in range(2, len(after) + 1)]
    weights = [share * torch.tensor([1.0 - s for s in shares[k + 1 :]]).prod() for k, share in enumerate(shares)]
    assert sum(weights) == pytest.approx(1.0)
    expected = sum(weight * w for weight, w in zip(weights, after, strict=True))
    torch.testing.assert_close(flat(run.growing.model), expected, rtol=1e-6, atol=1e-9)


def test_the_horizon_grows_with_the_run():
    """About the last 1/c of the steps: on a line w = k the average lies k/(c + 1) behind."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    average = GrowingAverage(model, 8.0)
    for k in range(1, 2001):
        model.weight.data.fill_(k)
        average.update(model)
        if k in (500, 2000):
            assert (k - average.model.weight.item()) / k == pytest.approx(1 / 9, rel=0.02)


def test_training_is_the_same_with_an_average_and_without():
    runs = [open_run(replace(SMALL, optimizer="adam", averaging=c)) for c in (None, 8.0)]
    for run in runs:
        run.train()
    assert torch.equal(flat(runs[0].model), flat(runs[1].model))
    assert "averaged_test_loss" not in runs[0].metrics[-1]
    last = runs[1].metrics[-1]
    assert last["averaged_test_loss"] == runs[1].task.evaluate(runs[1].growing.model, "test")["loss"]
    assert last["averaged_test_loss"] != last["test_loss"]


def test_an_optimizer_with_an_average_shows_its_own():
    run = open_run(replace(SMALL, optimizer="adaqn", averaging=8.0))
    assert run.growing is None
    result = run.train()
    with run.optimizer.averaged():
        own = run.task.evaluate(run.model, "test")["loss"]
    assert result["final"]["averaged_test_loss"] == own
    with pytest.raises(UserError, match="adaqn averages by itself, with 8, not 4: give --option averaging=4"):
        open_run(replace(SMALL, optimizer="adaqn", averaging=4.0))
    assert open_run(replace(SMALL, optimizer="adaqn-paper", averaging=4.0)).growing is not None


def test_averages_that_cannot_be_are_refused():
    assert "averaging must be a positive number, got 0" in refused("train", "--averaging", 0)
    assert "averaging is not for pinn" in refused("train", "--task", "pinn", "--averaging", 8)


# ---------------------------------------------------------------------- schedule-free


def test_schedule_free_is_evaluated_at_its_average_and_goes_on_from_its_weights():
    """The oracle keeps x, y and z as its paper writes them; the run and its evaluations change no bit."""
    config = replace(SMALL, optimizer="schedule-free", dtype="float64", warm_up=3)
    run, silent = open_run(config), open_run(config)
    x = z = flat(run.model)
    v, total, beta, largest = torch.zeros_like(x), 0.0, 0.9, 0.0
    for k in range(1, 11):
        before = flat(run.model)
        torch.testing.assert_close(before, beta * x + (1 - beta) * z)
        run.advance()
        run.measure()
        silent.advance()
        assert torch.equal(flat(run.model), flat(silent.model))
        gradient = _gradient(run, before, k - 1)
        lr = 0.01 * min(1.0, k / 3)
        largest = max(largest, lr)
        v = 0.999 * v + 0.001 * gradient**2
        z = z - lr * gradient / ((v / (1 - 0.999**k) + 1e-15).sqrt() + 1e-8)
        total += largest**2
        x = x + largest**2 / total * (z - x)
        model = run.task.model()
        torch.nn.utils.vector_to_parameters(x, model.parameters())
        assert run.metrics[-1]["test_loss"] == pytest.approx(run.task.evaluate(model, "test")["loss"], rel=1e-7)


def _gradient(run, weights, step):
    model = run.task.model()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    inputs, target = run.task.batch(step)
    run.task.losses(model(inputs), target).mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_text_is_drawn_from_the_average_of_a_schedule_free_run(tmp_path):
    """With one large step per symbol weights and average say different things; what is drawn is the average's."""
    config = replace(SMALL, optimizer="schedule-free", lr=0.3, seed=1)
    run = open_run(config, tmp_path / "run")
    run.begin()
    run.train()
    drawn = command("sample", tmp_path / "run", "--count", 40, "--temperature", 1e-5).output
    start = torch.tensor([[int(run.task.corpus.splits["train"][0])]])

    def greedy():
        fed, hidden, text = start, None, ""
        for _ in range(40):
            logits, hidden = run.model(fed, hidden)
            fed = logits[:, -1:].argmax(2)
            text += run.task.corpus.vocabulary[int(fed)]
        return text

    trained = greedy()
    run.optimizer.eval()
    assert drawn.rstrip("\n") == greedy().rstrip("\n")
    assert trained != greedy()


# ---------------------------------------------------------------------- weight decay


def test_the_decay_of_a_run_is_adamws():
    ours = open_run(replace(SMALL, optimizer="adam", weight_decay=0.3, dtype="float64"))
    theirs = open_run(replace(SMALL, optimizer="adamw", weight_decay=0.3, dtype="float64"))
    for _ in range(10):
        ours.advance()
        theirs.advance()
    torch.testing.assert_close(flat(ours.model), flat(theirs.model), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("optimizer", DECAYING)
def test_every_method_with_a_decay_takes_that_of_the_run(optimizer):
    """With gradients of zero nothing is left but the decay: w·(1 − lr·λ) in every step, for all weights."""
    whole_steps = {"warm_up": 0} if optimizer.startswith("adaqn") else {}
    run = open_run(replace(SMALL, optimizer=optimizer, weight_decay=0.5, lr=TABLE[optimizer].lr, options=whole_steps))
    if optimizer.startswith("soap"):  # its first step is none
        for p in run.model.parameters():
            p.grad = torch.zeros_like(p)
        run.optimizer.step()
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}

    def closure():
        for p in run.model.parameters():
            p.grad = torch.zeros_like(p)
        return torch.zeros(())

    closure()
    if optimizer == "kfac":  # it makes its own factors, from a pass
        run.task.losses(run.model(run.task.batch(0)[0]), run.task.batch(0)[1]).mean().backward()
        closure()
    run.optimizer.step(closure) if run.kind == "closure" else run.optimizer.step()
    sizes = {id(p): group["lr"] for group in run.optimizer.param_groups for p in group["params"]}
    for name, p in run.model.named_parameters():
        shrunk = before[name] * (1 - 0.5 * sizes[id(p)])
        torch.testing.assert_close(p.detach(), shrunk, rtol=1e-5, atol=1e-7, msg=name)


def test_a_decay_that_cannot_be_is_one_line():
    for words, message in (
        (["--optimizer", "lbfgs", "--weight-decay", 0.1], "lbfgs has no weight decay"),
        (["--optimizer", "adamw", "--weight-decay", 0.1, "--option", "weight_decay=0.2"], "given twice"),
        (["--weight-decay", -1], "weight_decay must be a number of at least 0, got -1"),
        (["--weight-decay", "nan"], "weight_decay must be a number of at least 0, got nan"),
        (["--task", "pinn", "--weight-decay", 0.1], "weight-decay is not for pinn"),
    ):
        assert message in refused("train", "--hidden", 8, *words)


# ---------------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "schedule-free", "warm_up": 3, "weight_decay": 0.1},
        {"optimizer": "prodigy", "lr": 1.0, "averaging": 8.0},
        {"optimizer": "soap-5", "averaging": 8.0, "clip": 1.0},
        {"optimizer": "adam", "averaging": 8.0, "warm_up": 9, "weight_decay": 0.1},
        {"optimizer": "adaqn", "averaging": 8.0, "weight_decay": 0.1, "clip": 1.0, "model": "transformer"},
        {"optimizer": "adamw", "averaging": 8.0, "task": "mlp", "model": "conv", "length": None, "limit": None},
    ],
    ids=lambda changes: changes["optimizer"] + "-" + changes.get("model", "tanh"),
)
def test_a_resumed_run_has_the_same_bits_and_averages(tmp_path, changes):
    config = replace(SMALL, **changes)
    whole = run_one(config, tmp_path / "whole")
    for stop in (2, 11):
        run = Run(config, tmp_path / f"stopped-{stop}")
        run.begin()
        with pytest.raises(KeyboardInterrupt):
            run.train(at_step(stop))
        same_run(run_one(config, tmp_path / f"stopped-{stop}"), whole)
    averaged = changes["optimizer"] != "schedule-free"
    assert ("averaged_valid_loss" in finished(tmp_path / "whole").result["final"]) == averaged
