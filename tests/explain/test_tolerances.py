"""A step that ends by a tolerance says so, and what to give instead lets it go on."""

import pytest
import torch
from torch import nn

from adaqn import LBFGS


def run(**options):
    """A parabola whose loss is small: what is absolute ends it far from its minimum."""
    w = nn.Parameter(torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64))
    opt = LBFGS([w], max_iter=50, **options)

    def closure():
        opt.zero_grad()
        loss = 1e-9 * (torch.tensor([1.0, 10.0, 100.0]) * w**2).sum()
        loss.backward()
        return loss

    opt.step(closure)
    return opt.explain(), float(w.detach().abs().max())


@pytest.mark.parametrize(
    ("name", "other"), [("tolerance_grad", "tolerance_change"), ("tolerance_change", "tolerance_grad")]
)
def test_a_step_that_ended_by_a_tolerance_says_so(name, other):
    said, distance = run(**{other: 0})
    (found,) = (finding for finding in said.findings if finding.name == "tolerance")
    assert name in found.what
    assert f"{name}=0" in found.change
    assert said.is_well  # as it was asked for
    after, nearer = run(tolerance_grad=0, tolerance_change=0)
    assert nearer < 0.1 * distance
    assert "tolerance" not in [finding.name for finding in after.findings]
