"""Muon's products in float32 are those of its authors' bfloat16, only more exact."""

import pytest
import torch
from torch import nn

from adaqn.experiments.rivals.muon import muon

pytorch_optimizer = pytest.importorskip("pytorch_optimizer")


def _one_step(make):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Unflatten(1, (2, 3, 5)), nn.Conv2d(2, 4, 3))
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = make(net)
    net(torch.randn(64, 12)).square().sum().backward()
    optimizer.step()
    return [p.detach() - was for p, was in zip(net.parameters(), before, strict=True)]


def _theirs(net):
    inner, outer = ([p for p in net.parameters() if (p.dim() >= 2) == matrix] for matrix in (True, False))
    groups = [{"params": inner, "use_muon": True}, {"params": outer, "use_muon": False}]
    return pytorch_optimizer.Muon(groups, lr=0.02, adamw_lr=3e-4)


def test_a_step_is_the_one_of_its_authors():
    ours = _one_step(lambda net: muon(net.named_parameters(), lr=0.02))
    for mine, other in zip(ours, _one_step(_theirs), strict=True):
        torch.testing.assert_close(mine, other, rtol=0.0, atol=0.03 * float(other.abs().max()))


def test_its_matrices_are_nearly_orthogonal():
    """Five iterations bring every singular value near 1; in bfloat16 they are rounded to two digits."""
    step = _one_step(lambda net: muon(net.named_parameters(), lr=0.02))[0]
    values = torch.linalg.svdvals(step / (0.02 * (30 / 12) ** 0.5))  # its factor for tall matrices
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.3
