"""Tasks: the same batches and weights for every optimizer, and the splits that they are from."""

from dataclasses import replace

import pytest
import torch

from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.training.config import RunConfig

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=12, batch_size=8, length=20, evaluations=20, lr=0.01)


def test_every_optimizer_sees_the_same_batches_and_starts_from_the_same_weights():
    first, second = (make_task(replace(SMALL, optimizer=name).complete()) for name in ("adam", "adaqn"))
    for step in range(70):
        assert all(torch.equal(a, b) for a, b in zip(first.batch(step), second.batch(step), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(first.model().parameters(), second.model().parameters(), strict=True))


def test_carried_text_is_contiguous():
    task = make_task(replace(SMALL, carry_state=True).complete())
    for step in range(3):
        (x, y), (following, _) = task.batch(step), task.batch(step + 1)
        assert torch.equal(y[:, -1], following[:, 0])
        assert torch.equal(x[:, 1:], y[:, :-1])
    assert not task.continues(0)
    assert task.continues(1)
    assert not task.continues(task.steps_per_epoch)


def test_the_monitoring_set_is_of_the_training_split():
    task = make_task(SMALL.complete())
    rows = {tuple(row) for row in task.splits["train"][0].tolist()}
    assert all(tuple(row) in rows for row in task.monitoring_set()[0].tolist())


def test_weights_are_drawn_with_the_variance_or_the_deviation_of_the_paper():
    for spread, expected in (("variance", 0.1), ("std", 0.01)):
        model = make_task(replace(SMALL, hidden=60, spread=spread).complete()).model()
        assert float(model.cells.weight_hh_l0.detach().std()) == pytest.approx(expected, rel=0.1)
