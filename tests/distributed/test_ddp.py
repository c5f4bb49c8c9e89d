"""DDP: every process takes the same branch, and the numbers are those of one process on the global batch."""

import problem
import pytest
import torch
import torch.distributed as dist
from processes import run_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from adaqn import AdaQN, EmpiricalFisher, Monitor, PairOptions, RejectOptions, StorageOptions


@pytest.mark.parametrize(
    "count, name", [(2, "paper"), (2, "modern"), (2, "kronecker"), pytest.param(4, "modern", marks=pytest.mark.slow)]
)
def test_the_numbers_are_those_of_one_process(count, name):
    expected = problem.outcomes(None, name)
    problem.assert_same_run(run_processes(count, problem.outcomes, "ddp", name), expected)


def pooled_verdicts():
    """Per-example losses of different numbers, scalars, and a monitor that only one process has."""
    rank = dist.get_rank()
    found = []
    for losses in (torch.arange(2.0 + rank), torch.tensor(1.0 + rank), None if rank == 0 else torch.tensor([3.0, 5.0])):
        seen: list[torch.Tensor] = []
        w = nn.Parameter(torch.ones(3))
        monitor = None if losses is None else lambda losses=losses: losses
        opt = AdaQN([w], 0.1, monitor=monitor, reject=lambda new, old, seen=seen: seen.append(new), cycle_length=1)
        for _ in range(2):
            w.grad = torch.ones(3)
            opt.step()
        found.append(seen[0])
    return found


def test_a_monitor_may_hold_another_batch_in_each_process():
    for examples, scalars, one in run_processes(2, pooled_verdicts):
        assert examples.tolist() == [0.0, 1.0, 0.0, 1.0, 2.0]
        assert scalars.dim() == 0
        assert float(scalars) == 1.5
        assert one.tolist() == [3.0, 5.0]


def changing_loss():
    """The monitored loss of one process becomes another function in mid-run (D39)."""
    w, shift = nn.Parameter(torch.ones(3)), 0.0
    opt = AdaQN([w], 0.01, monitor=lambda: w.detach().square() + shift, cycle_length=1, warm_up=0)
    for step in range(10):
        if step == 5 and dist.get_rank() == 1:
            shift = 100.0
        w.grad = 2.0 * w.detach()
        opt.step()
    return opt.stats.rejected, opt.stats.cycles, w.detach()


def test_processes_evaluate_the_anchor_again_together():
    (rejected, cycles, w), other = run_processes(2, changing_loss)
    assert (rejected, cycles) == other[:2] == (0, 10)
    assert torch.equal(w, other[2])


def failing_monitor():
    w = nn.Parameter(torch.ones(3))

    def monitor():
        if dist.get_rank() == 1:
            raise ZeroDivisionError("of no use")
        return 1.0

    opt = AdaQN([w], 0.1, monitor=monitor, cycle_length=1, reject=RejectOptions(window=0))
    w.grad = torch.ones(3)
    try:
        opt.step()
    except (RuntimeError, ZeroDivisionError) as error:
        return str(error), float(w[0])


def wrong_monitor(kind):
    """Process 1 has a batch that does not fit its model."""
    net = problem.wrapped(problem.model(), kind)
    batch = torch.randn(4, 5 + dist.get_rank(), dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    monitor = Monitor(net, problem.per_example, batch)
    opt = AdaQN(net.parameters(), monitor=monitor)
    try:
        problem.train(net, opt, 1)
    except (ValueError, RuntimeError) as error:  # FSDP2 may leave weights whole that a pass had unsharded
        return str(error), opt.stats.steps
    return None


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_monitor_that_does_not_fit_in_one_process_ends_all_in_the_first_step(kind):
    waiting, raising = run_processes(2, wrong_monitor, kind)
    assert waiting == ("the monitor raised an error in process 1: the message there says which", 0)
    assert "could not evaluate model(*inputs)" in raising[0]
    assert raising[1] == 0


def test_a_monitor_that_raises_in_one_process_ends_all_of_them():
    (waiting, _), (raising, _) = run_processes(2, failing_monitor)
    assert raising == "of no use"
    assert "the monitor raised an error in process 1" in waiting


def gradients_not_averaged(**options):
    w = nn.Parameter(torch.ones(3))
    opt = AdaQN([w], 0.1, reject="none", cycle_length=2, **options)
    try:
        for _ in range(4):
            w.grad = torch.randn(3, generator=torch.Generator().manual_seed(dist.get_rank()))
            opt.step()
    except RuntimeError as error:
        return str(error)
    return opt.stats.cycles


def test_weights_that_differ_between_processes_are_noticed():
    for message in run_processes(2, gradients_not_averaged):
        assert "the gradients or weights differ between the processes" in message
        assert "process_group='none'" in message


def independent_runs():
    return gradients_not_averaged(process_group="none")


def test_independent_runs_beside_each_other():
    assert run_processes(2, independent_runs) == [2, 2]


def two_groups():
    """Four processes, two of which train one model and two another."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = dist.get_rank() // 2
    torch.manual_seed(mine)
    net = nn.Linear(3, 3)
    ddp = DistributedDataParallel(net, process_group=groups[mine])
    monitor = Monitor(net, nn.MSELoss(), (torch.randn(8, 3), torch.randn(8, 3)))
    storage = StorageOptions(shard_history=mine == 1)
    opt = AdaQN(net.parameters(), preset="modern", monitor=monitor, process_group=groups[mine], storage=storage)
    for _ in range(12):
        opt.zero_grad()
        ddp(torch.randn(4, 3)).square().mean().backward()
        opt.step()
    return problem.vector(net.parameters()), opt.stats.cycles


def test_groups_of_processes_beside_each_other():
    (a, cycles), (b, _), (c, _), (d, _) = run_processes(4, two_groups)
    assert cycles == 2
    assert torch.equal(a, b)
    assert torch.equal(c, d)
    assert not torch.allclose(a, c)


def empirical_fisher(steps=20):
    net = problem.model()
    wrapped = problem.wrapped(net, "ddp" if dist.is_initialized() else None)
    curvature = EmpiricalFisher(net, problem.per_example, [problem.share(problem.data(-2, 32))])
    monitor = Monitor(wrapped, problem.per_example, problem.share(problem.data(-1, 64)))
    opt = AdaQN(net.parameters(), 0.1, preset="modern", monitor=monitor, pairs=PairOptions(curvature=curvature))
    return problem.train(wrapped, opt, steps), opt.stats.stored


def test_the_empirical_fisher_is_averaged_over_the_processes():
    path, stored = empirical_fisher()
    assert stored > 0
    for theirs, _ in run_processes(2, empirical_fisher):
        assert torch.allclose(theirs, path, rtol=0.0, atol=1e-9)


def test_a_group_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"process_group must be .* got 'nccl'"):
        AdaQN([nn.Parameter(torch.ones(2))], process_group="nccl")
