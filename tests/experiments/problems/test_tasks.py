"""Tasks: the same batches and weights for every optimizer, and the splits that they are from."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from adaqn.experiments.problems import tasks
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


def test_losses_of_many_words_are_torchs_to_the_last_bit(monkeypatch):
    """In slices of which the last one is shorter."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 30, generator=generator, requires_grad=True)
    target = torch.randint(30, (50,), generator=generator)
    weights = torch.rand(50, generator=generator)
    whole = cross_entropy(logits, target, reduction="none")
    (expected,) = torch.autograd.grad((whole * weights).sum(), logits)
    monkeypatch.setattr(tasks, "SLICE_ELEMENTS", 8 * 30 + 29)
    sliced = tasks.symbol_losses(logits, target)
    (found,) = torch.autograd.grad((sliced * weights).sum(), logits)
    assert torch.equal(sliced, whole)
    assert torch.equal(found, expected)
