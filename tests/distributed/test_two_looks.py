"""Verdicts in two looks on several processes: all look alike, and the numbers are those of one (D35)."""

import problem
import torch
import torch.distributed as dist
from processes import run_processes

from adaqn import AdaQN, Monitor, MonitoredGradient, PairOptions, RejectOptions

STEPS, EACH, FIRST = 100, 64, 16
REJECT = RejectOptions(level=1.0, first_look=FIRST)


def halves():
    """The monitored examples in the order in which two processes look at them, and the rows of each."""
    x, target = problem.data(-1, 2 * EACH)
    rows = torch.arange(2 * EACH).reshape(2, EACH)
    order = torch.cat([rows[:, :FIRST].reshape(-1), rows[:, FIRST:].reshape(-1)])
    return (x, target), order, rows


def run(kind, name, uncut=(), **options):
    """(The path, the outcomes with the examples that judged them, the losses evaluated here); in one process alone
    the batch is ordered so that its first look is that of both."""
    (x, target), order, rows = halves()
    alone = not dist.is_initialized()
    mine = order if alone else rows[dist.get_rank()]
    events, sizes = [], []
    net = problem.wrapped(problem.model(), kind)

    def per_example(output, wanted):
        sizes.append(len(output))
        return problem.per_example(output, wanted)

    monitor = Monitor(net, per_example, (x[mine], target[mine]))
    if not alone and dist.get_rank() in uncut:
        monitor = monitor.__call__ if kind == "ddp" else monitor  # a function, that cannot be cut
    reject = RejectOptions(level=1.0, first_look=2 * FIRST) if alone else REJECT
    given = {**problem.OPTIONS[name], **options, "reject": reject}
    opt = AdaQN(net.parameters(), monitor=monitor, on_cycle=events.append, **given)
    path = problem.train(net, opt, STEPS)
    return path, [(event.outcome.value, event.examples) for event in events], sizes


def check(found, expected):
    path, outcomes, _ = expected
    judged = [examples for _, examples in outcomes]
    assert set(judged) == {2 * FIRST, 2 * EACH}, "some were settled, and some not"
    assert {"stored", "rejected"} <= {outcome for outcome, _ in outcomes}
    for theirs, their_outcomes, sizes in found:
        assert their_outcomes == outcomes
        assert torch.allclose(theirs, path, rtol=0.0, atol=1e-9)
        assert set(sizes) == {FIRST, EACH - FIRST, EACH}
        assert sizes.count(EACH) <= 2, "the whole batch only before the first verdict"


def several(kind, names):
    return [run(kind, name, **options) for name, options in names]


PARTLY = {"pairs": PairOptions(curvature=MonitoredGradient(examples=FIRST), scale="stored", eps=1e-3)}
PARTLY_ALONE = {"pairs": PairOptions(curvature=MonitoredGradient(examples=2 * FIRST), scale="stored", eps=1e-3)}


def test_processes_look_together_and_find_what_one_finds():
    expected = [run("", "modern"), run("", "modern", **PARTLY_ALONE)]
    for kind in ("ddp", "fsdp"):
        here, there = run_processes(2, several, kind, [("modern", {}), ("modern", PARTLY)])
        for i in range(2):
            check([here[i], there[i]], expected[i])


def with_a_function():
    return run("ddp", "modern", uncut=(1,))


def test_one_process_that_cannot_cut_its_batch_has_all_look_once():
    for _, outcomes, sizes in run_processes(2, with_a_function):
        assert {examples for _, examples in outcomes} == {2 * EACH}
        assert set(sizes) == {EACH}


def one_without():
    """Only the first process has a monitor."""
    events = []
    net = problem.wrapped(problem.model(), "ddp")
    x, target = problem.data(-1, EACH)
    monitor = Monitor(net.module, problem.per_example, (x, target)) if dist.get_rank() == 0 else None
    options = {**problem.OPTIONS["modern"], "reject": REJECT}
    opt = AdaQN(net.parameters(), monitor=monitor, on_cycle=events.append, **options)
    path = problem.train(net, opt, STEPS)
    return path, [(event.outcome.value, event.examples) for event in events]


def test_a_process_without_a_monitor_has_no_say():
    (path, outcomes), (other, others) = run_processes(2, one_without)
    assert torch.equal(path, other)
    assert outcomes == others
    assert {examples for _, examples in outcomes} == {FIRST, EACH}
