"""What all processes must agree on, and how they come together again."""

import problem
import pytest
import torch
import torch.distributed as dist
from processes import run_processes

from adaqn import AdaQN, RotatingMonitor
from adaqn.experiments.training.team import Torchrun


def drifting(preset):
    """Weights of process 1 that differ in their last digits, as on a machine that rounds differently."""
    net = problem.wrapped(problem.model(torch.float32), "ddp")
    opt = problem.monitored(net, net.parameters(), preset, lr=1e-3, cycle_length=5, dtype=torch.float32)
    apart = []
    for k in range(40):
        problem.train(net, opt, 1, start=k, dtype=torch.float32)
        if dist.get_rank() == 1 and k % 5 == 2:
            with torch.no_grad():
                for p in net.parameters():
                    p.mul_(1.0 + 1e-6)
        if k % 5 == 4:
            weights = problem.vector(net.parameters())
            both = [torch.empty_like(weights) for _ in range(2)]
            dist.all_gather(both, weights)
            apart.append(float((both[0] - both[1]).norm()))
    return apart


@pytest.mark.parametrize("preset", ["modern", "kronecker"])
def test_processes_that_round_differently_come_together_at_the_end_of_a_cycle(preset):
    assert run_processes(2, drifting, preset)[0] == [0.0] * 8


def not_averaged(lr, storage):
    net = problem.model()
    opt = problem.monitored(net, net.parameters(), "modern", lr=lr, cycle_length=5, storage=storage)
    for k in range(5):
        try:
            problem.train(net, opt, 1, start=k)
        except RuntimeError as error:
            return k, str(error)
    return None


@pytest.mark.parametrize("storage", [None, problem.SHARDED], ids=str)
def test_gradients_that_nobody_averages_are_noticed_at_the_end_of_the_first_cycle(storage):
    for step, message in run_processes(2, not_averaged, 1e-6, storage):
        assert step == 4
        assert "nobody averages their gradients" in message


class Turning(RotatingMonitor):
    def advance(self):
        super().advance()
        if self.position == 3:
            raise StopIteration("out of batches")


def rotating_in_one_process(kind, batches):
    net = problem.wrapped(problem.model(), "ddp")
    sets = [problem.data(-k - 1, 16) for k in range(batches)]
    sets[-1] = (sets[-1][0], sets[-1][1] * torch.nan)
    monitor = kind(net, problem.per_example, sets) if dist.get_rank() == 1 else None
    opt = AdaQN(net.parameters(), preset="modern", monitor=monitor)
    try:
        problem.train(net, opt, 30)
    except (RuntimeError, StopIteration) as error:
        return str(error)
    return opt.stats


def test_a_set_that_cannot_judge_judges_nothing_in_any_process():
    here, there = run_processes(2, rotating_in_one_process, RotatingMonitor, 4)
    assert here == there
    assert here.cycles == 6


def test_a_monitor_that_cannot_turn_ends_all_processes():
    waiting, raising = run_processes(2, rotating_in_one_process, Turning, 9)
    assert raising == "out of batches"
    assert "the monitor raised an error in process 1" in waiting


def closure_and_checkpoint():
    from torch.distributed.checkpoint.state_dict import get_state_dict

    from adaqn import OLBFGS

    net = problem.wrapped(problem.model(), "ddp")
    opt = OLBFGS(net.parameters(), 0.1)
    _, state = get_state_dict(net, opt)
    return tuple(state["state"]["0.weight"]["pairs_s"].shape), opt.stats.steps


def test_a_checkpoint_can_be_made_of_a_method_that_needs_a_closure():
    assert run_processes(2, closure_and_checkpoint) == [((10, 9, 5), 0)] * 2


def test_every_process_has_a_share_of_few_examples():
    team = object.__new__(Torchrun)
    team.count = 3
    sizes = []
    for team.rank in range(3):
        x, _ = team.share((torch.zeros(4, 1), torch.zeros(4)))
        sizes.append(len(x))
    assert sizes == [2, 1, 1]


def test_exchanged_in_several_messages_the_numbers_are_the_same():
    results = run_processes(2, in_small_messages, 10), run_processes(2, in_small_messages, 10**6)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][0], results[0][1])


def in_small_messages(numbers):
    from adaqn.parameters import sharded

    sharded.BUCKET = numbers
    net = problem.wrapped(problem.model(), "ddp")
    opt = problem.monitored(net, net.parameters(), "kronecker", storage=problem.SHARDED)
    return problem.train(net, opt, 12)
