"""A loss function that averages is asked for one loss per example, and only if that is the same loss."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, smooth_l1_loss

from adaqn import Monitor
from adaqn.evaluation.losses import EachExample

torch.manual_seed(0)
SCORES, CLASSES = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 1, 1])
IMAGES, PIXELS = torch.randn(6, 4, 5), torch.randint(0, 4, (6, 5))


@pytest.mark.parametrize(
    ("loss_fn", "output", "target"),
    [
        (nn.CrossEntropyLoss(), SCORES, CLASSES),
        (nn.CrossEntropyLoss(label_smoothing=0.1), IMAGES, PIXELS),
        (cross_entropy, IMAGES, PIXELS),
        (nn.MSELoss(), IMAGES, torch.randn(6, 4, 5)),
        (mse_loss, SCORES, torch.randn(6, 4)),
        (nn.BCEWithLogitsLoss(), SCORES, torch.rand(6, 4)),
        (functools.partial(smooth_l1_loss, beta=0.5), SCORES, torch.randn(6, 4)),
    ],
)
def test_the_losses_of_torch_are_told_apart(loss_fn, output, target):
    losses = EachExample(loss_fn)(output, target)
    assert losses.shape == (6,)
    torch.testing.assert_close(losses.mean(), loss_fn(output, target))
    for i in range(6):
        torch.testing.assert_close(losses[i], loss_fn(output[i : i + 1], target[i : i + 1]))


@pytest.mark.parametrize(
    ("loss_fn", "target"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0])), CLASSES),  # a weighted mean
        (nn.CrossEntropyLoss(ignore_index=1), CLASSES),  # a mean over the others
        (cross_entropy, torch.tensor([0, -100, 2, 3, 1, 1])),
        (nn.CrossEntropyLoss(reduction="sum"), CLASSES),
        (functools.partial(cross_entropy, reduction="sum"), CLASSES),
        (lambda output, target: cross_entropy(output, target), CLASSES),
    ],
)
def test_what_is_no_plain_mean_stays_what_it_was(loss_fn, target):
    each = EachExample(loss_fn)
    for _ in range(2):
        assert torch.equal(each(SCORES, target), loss_fn(SCORES, target))


def test_the_users_loss_is_left_alone():
    loss_fn = nn.CrossEntropyLoss()
    EachExample(loss_fn)(SCORES, CLASSES)
    assert loss_fn.reduction == "mean"
    assert loss_fn(SCORES, CLASSES).dim() == 0


def test_a_monitor_has_one_loss_per_example_and_takes_another_loss_function():
    model = nn.Linear(3, 4)
    monitor = Monitor(model, nn.CrossEntropyLoss(), (torch.randn(6, 3), CLASSES))
    assert monitor().shape == (6,)
    monitor.loss_fn = lambda output, target: output.mean()
    assert monitor().dim() == 0
