"""L-BFGS with DDP: the same branches in all processes, and the numbers of one process on the whole batch."""

import problem
import pytest
import torch
import torch.distributed as dist
import whole
from counting import counted
from processes import run_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from adaqn import LBFGS

FEW = ("kronecker", "poisoned")
MATRICES = ("kronecker", "kronecker secant", "groups", "poisoned", "no search, kronecker", "damped")
pytestmark = pytest.mark.filterwarnings("ignore:LBFGS. the loss or the gradient is not finite")


@pytest.mark.parametrize(
    "count, names, storage",
    [
        pytest.param(2, tuple(whole.CASES), None, id="2"),
        pytest.param(4, FEW, None, id="4", marks=pytest.mark.slow),  # four are in test_lbfgs_sharded.py
        pytest.param(2, MATRICES, problem.SHARDED, id="2-shard_history"),
        pytest.param(4, FEW, problem.SHARDED, id="4-shard_history", marks=pytest.mark.slow),
    ],
)
def test_the_numbers_are_those_of_one_process(count, names, storage):
    expected = whole.runs(None, names, {})
    whole.assert_same(run_processes(count, whole.runs, "ddp", names, {"storage": storage}), expected)


def test_the_cases_take_every_branch():
    found = {name: counts for name, (_, counts, _) in whole.runs(None, tuple(whole.CASES), {}).items()}
    reasons = {counts[-1] for counts in found.values()}
    for words in ("max_iter", "max_eval", "tolerance_grad", "is zero", "not finite", "no lower loss"):
        assert any(words in reason for reason in reasons), (words, reasons)
    assert found["rising"][4] > 0
    assert found["poisoned"][5] > 5
    assert found["budget"][1] == 28


def failures(storage):
    """Errors of one process, and how the run goes on behind them."""
    net, opt = whole.made("ddp", storage=storage)
    loss, found = whole.Loss(net, opt), []

    def raising():
        value = loss()
        if dist.get_rank() == 1 and loss.calls % 13 == 11:
            raise ZeroDivisionError("of no use")
        return value

    def returning_nothing():
        value = loss()
        return value if dist.get_rank() == 1 else None

    opt.step(loss)
    for closure in (raising, returning_nothing):
        before, calls = problem.vector(net.parameters()), loss.calls
        try:
            opt.step(closure)
        except (RuntimeError, ZeroDivisionError, TypeError) as error:
            found.append((str(error), torch.equal(before, problem.vector(net.parameters())), loss.calls - calls))
    return found, whole.trained(net, opt, loss), whole.counts(opt)


@pytest.mark.parametrize("storage", [None, problem.SHARDED], ids=["whole", "sharded"])
def test_an_error_in_one_process_is_an_error_in_all(storage):
    (first, path, counts), (second, other, others) = run_processes(2, failures, storage)
    assert torch.equal(path, other)
    assert counts == others
    assert "the closure raised an error in process 1" in first[0][0]
    assert second[0][0] == "of no use"
    assert "nothing (None)" in first[1][0]
    assert "the closure raised an error in process 0" in second[1][0]
    for each in (first, second):
        assert [(unchanged, calls) for _, unchanged, calls in each] == [(False, 11), (True, 1)]


def not_averaged(storage=None, **options):
    net, opt = whole.made(None, storage=storage, **options)
    before = problem.vector(net.parameters())
    try:
        opt.step(whole.Loss(net, opt))
    except RuntimeError as error:
        return str(error), torch.equal(before, problem.vector(net.parameters()))
    return opt.stats.iterations


def strangers():
    """Gradients that nobody averages; each process on its own; and two groups of two."""
    found = [not_averaged(), not_averaged(problem.SHARDED), not_averaged(process_group="none")]
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = dist.get_rank() // 2
    torch.manual_seed(mine)
    net = DistributedDataParallel(nn.Linear(3, 3), process_group=groups[mine])
    opt = LBFGS(net.parameters(), process_group=groups[mine], storage=problem.SHARDED if mine else None)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(dist.get_rank()))
    calls = []

    def closure():
        opt.zero_grad()
        loss = (net(x) - x.cos()).square().mean()
        loss.backward()
        calls.append(loss.item())
        return loss

    for _ in range(mine + 1):
        opt.step(closure)
    return *found, problem.vector(net.parameters()), len(calls)


def test_who_works_together():
    results = run_processes(4, strangers)
    for differ, sharded_differ, alone, _, _ in results:
        for message, unchanged in (differ, sharded_differ):
            assert "nobody averages their gradients" in message
            assert "process_group='none'" in message
            assert unchanged
        assert alone == whole.OPTIONS["max_iter"]
    (a, i), (b, j), (c, k), (d, m) = (result[-2:] for result in results)
    assert torch.equal(a, b)
    assert torch.equal(c, d)
    assert i == j < k == m
    assert not torch.allclose(a, c)


def drifting():
    """Weights of process 1 that differ in their last digits, as on a machine that rounds differently."""
    net, opt = whole.made("ddp", dtype=torch.float32)
    loss, apart = whole.Loss(net, opt, dtype=torch.float32), []
    for _ in range(5):
        if dist.get_rank() == 1:
            with torch.no_grad():
                for p in net.parameters():
                    p.mul_(1.0 + 1e-6)
        opt.step(loss)
        weights = problem.vector(net.parameters())
        both = [torch.empty_like(weights) for _ in range(2)]
        dist.all_gather(both, weights)
        apart.append(float((both[0] - both[1]).norm()))
    return apart, whole.counts(opt)


def resampling(name):
    """A new sample in one process: in the middle of a search, or where a step waits for its gradient."""
    net, opt = whole.made("ddp", name)
    loss = whole.Loss(net, opt, name)

    def closure():
        if dist.get_rank() == 1 and loss.calls in (4, 11, 30):
            opt.resampled()
        return loss()

    return whole.trained(net, opt, closure, 60), whole.counts(opt), loss.calls


def meetings():
    views = {}
    for as_view in (False, True):  # of DDP's buckets, which the gradients are
        net = whole.model()
        ddp = DistributedDataParallel(net, gradient_as_bucket_view=as_view)
        opt = LBFGS(net.parameters(), **whole.OPTIONS)
        views[as_view] = whole.trained(net, opt, whole.Loss(ddp, opt))
    return drifting(), {name: resampling(name) for name in ("kronecker", "no search")}, torch.equal(*views.values())


def test_processes_that_differ_come_together():
    (drift, samples, same), (others_drift, other_samples, other_same) = run_processes(2, meetings)
    assert drift == others_drift
    assert drift[0] == [0.0] * 5
    for name, (path, counts, calls) in samples.items():
        assert torch.equal(path, other_samples[name][0])
        assert (counts, calls) == other_samples[name][1:]
    assert samples["kronecker"][2] > 70  # searches that began again
    assert same
    assert other_same


def messages():
    """All that is sent from one evaluation to the next, where each iteration takes one."""
    found = {}
    for name, kind, options in (
        ("ddp", "ddp", {}),
        ("slices", "ddp", {"storage": problem.SHARDED, "scaling": "adam"}),
        ("slices, kronecker", "ddp", {"storage": problem.SHARDED}),
        ("fsdp", "fsdp", {"scaling": "adam"}),
    ):
        net, opt = whole.made(kind, **options)
        loss = whole.Loss(net, opt)
        opt.step(loss)
        with counted() as calls:
            opt.step(lambda loss=loss, calls=calls: calls.append("closure") or loss())
        before, after = [i for i, call in enumerate(calls) if call == "closure"][2:4]
        found[name] = calls[before + 1 : after]
    return found


def test_messages():
    """Two small ones per evaluation, seven per iteration, two more for vectors in parts; and those vectors."""
    for found in run_processes(2, messages):
        numbers = {key: [size for _, size in calls if size < 432] for key, calls in found.items()}
        vectors = {key: [size for _, size in calls if size >= 432] for key, calls in found.items()}
        assert {key: (len(numbers[key]), len(vectors[key])) for key in found} == {
            "ddp": (9, 0),
            "slices": (11, 1),
            "slices, kronecker": (11, 1),
            "fsdp": (11, 0),
        }
        assert max(map(sum, numbers.values())) < 8 * 60
