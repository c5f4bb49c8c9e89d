"""L-BFGS with FSDP2: vectors in shards, products as sums, and the numbers of one process."""

import problem
import pytest
import torch
import torch.distributed as dist
import whole
from processes import run_processes
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from adaqn import LBFGS, Kronecker, Scaling, StorageOptions
from adaqn.core.secant import KroneckerSecant

NAMES = ("strong wolfe", "no search", "adam groups", "secant", "poisoned", "rising")
pytestmark = pytest.mark.filterwarnings("ignore:LBFGS. the loss or the gradient is not finite")


KRONECKER = {"kronecker": Kronecker, "kronecker secant": KroneckerSecant, "groups": Kronecker}


def alone(names, count):
    """In one process, with the blocks that lie on so many."""
    return {
        name: whole.run(
            None, name, **({"scaling": problem.row_blocks(KRONECKER[name], count)} if name in KRONECKER else {})
        )
        for name in names
    }


def test_the_numbers_are_those_of_one_process():
    """Five rows on two processes are uneven shards."""
    names = (*KRONECKER, *NAMES)
    whole.assert_same(run_processes(2, whole.runs, "fsdp", names, {}), alone(names, 2))


def four(held, copied):
    return whole.runs("fsdp", (held,), {}), whole.runs("hsdp", (copied,), {})


@pytest.mark.parametrize(
    "held, copied",
    [("poisoned", "kronecker"), pytest.param("kronecker secant", "adam groups", marks=pytest.mark.slow)],
)
def test_a_process_that_holds_nothing_and_copies_of_shards(held, copied):
    for found, count in zip(zip(*run_processes(4, four, held, copied), strict=True), (4, 2), strict=True):
        whole.assert_same(found, alone(tuple(found[0]), count))


def low_precision():
    """(Losses of a run with bfloat16 arithmetic, of one with bfloat16 weights and wide copies.)"""
    found = []
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for dtype, policy, storage in (
        (torch.float32, mixed, None),
        (torch.bfloat16, MixedPrecisionPolicy(), StorageOptions(master_weights=True)),
    ):
        net = fully_shard(whole.model(dtype), mp_policy=policy)
        opt = LBFGS(net.parameters(), max_iter=10, storage=storage)
        loss = whole.Loss(net, opt, dtype=dtype)
        losses = [float(opt.step(loss)) for _ in range(4)]
        found.append((losses, whole.counts(opt), problem.vector(net.parameters()), opt.state_size()))
    return found


class Mixing(Scaling):
    """An H0 of whole matrices that does not say which blocks it has."""

    elementwise = False


def refusals():
    net = problem.wrapped(whole.model(), "fsdp")
    messages = []
    for options in (
        {"scaling": Mixing()},
        {"scaling": "adam", "storage": problem.SHARDED},
        {"scaling": "adam", "process_group": "none"},
    ):
        opt = LBFGS(net.parameters(), **options)
        loss = whole.Loss(net, opt)
        try:
            opt.step(loss)
            messages.append("no error")
        except ValueError as error:
            messages.append((str(error), loss.calls))
    return messages


def failure():
    net, opt = whole.made("fsdp", "damped")
    loss = whole.Loss(net, opt)

    def raising():
        value = loss()
        if dist.get_rank() == 1 and loss.calls == 7:
            raise ZeroDivisionError("of no use")
        return value

    try:
        opt.step(raising)
    except (RuntimeError, ZeroDivisionError) as error:
        return str(error), whole.trained(net, opt, loss)


def looking(kind, where):
    """Evaluations without backward, after which FSDP2 keeps whole weights: they are not those of the next trial."""

    def look(*_):
        with torch.no_grad():
            net(loss.x)

    def closure():
        value = loss()
        if where == "closure":
            look()
        return value

    net, opt = whole.made(kind, "damped", on_cycle=look if where == "iteration" else None)
    loss = whole.Loss(net, opt)
    return whole.trained(net, opt, closure, 20)


def rest():
    looks = [looking("fsdp", where) for where in ("closure", "iteration")]
    return low_precision(), refusals(), failure(), looks


def test_low_precision_refusals_errors_and_whole_weights_left_behind():
    (precisions, messages, failed, looks), (others, other_messages, other_failed, _) = run_processes(2, rest)
    for (losses, counts, weights, size), (_, other_counts, other_weights, other_size) in zip(
        precisions, others, strict=True
    ):
        assert losses[-1] < losses[0]
        assert counts == other_counts
        assert torch.equal(weights, other_weights)
        assert size > other_size  # three rows of five, and two
    for each in (messages, other_messages):
        assert [calls for _, calls in each] == [0, 0, 0]
        for (message, _), words in zip(
            each, ("scaling='kronecker' or 'adam'", "sharded already", "leave it out"), strict=True
        ):
            assert words in message
    assert "the closure raised an error in process 1" in failed[0]
    assert other_failed[0] == "of no use"
    assert torch.equal(failed[1], other_failed[1])
    for path in looks:
        assert torch.allclose(path, looking(None, ""), rtol=0.0, atol=1e-9)
