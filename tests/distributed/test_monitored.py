"""Pairs of the monitored batch and the growing average on several processes: the numbers of one."""

import problem
import pytest
import torch
from processes import run_processes

from adaqn import MonitoredGradient, PairOptions

STEPS = 60
PAIRS = PairOptions(curvature=MonitoredGradient(kappa=1.5), scale="stored", eps=1e-3)


def averaged_run(kind, storage=None):
    """(The path, the average, the iterate after eval() and problem.train(), the pairs that were stored)."""
    net = problem.wrapped(problem.model(), kind)
    opt = problem.monitored(net, net.parameters(), "modern", pairs=PAIRS, storage=storage)
    path = problem.train(net, opt, STEPS)
    params = [p for group in opt.param_groups for p in group["params"]]
    with opt.averaged():
        shown = problem.vector(params)
    opt.eval()
    again = problem.vector(params)
    opt.train()
    return path, shown, again, problem.vector(params), opt.stats.stored


@pytest.mark.parametrize("kind, storage", [("ddp", None), ("ddp", problem.SHARDED), ("fsdp", None)])
def test_the_numbers_are_those_of_one_process(kind, storage):
    path, shown, again, back, stored = averaged_run("")
    assert stored > 5
    assert torch.equal(shown, again)
    assert torch.equal(back, path[-1])
    assert not torch.equal(shown, back)
    for theirs, their_shown, their_again, their_back, their_stored in run_processes(2, averaged_run, kind, storage):
        assert their_stored == stored
        assert torch.allclose(theirs, path, rtol=0.0, atol=1e-9)
        assert torch.allclose(their_shown, shown, rtol=0.0, atol=1e-9)
        assert torch.equal(their_again, their_shown)
        assert torch.equal(their_back, theirs[-1])
