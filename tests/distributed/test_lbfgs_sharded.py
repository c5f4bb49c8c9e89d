"""L-BFGS with FSDP2: vectors in shards, products as sums, and the numbers of one process."""

import problem
import pytest
import torch
import torch.distributed as dist
import whole
from processes import run_processes
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from adaqn import LBFGS, StorageOptions

NAMES = ("strong wolfe", "backtracking", "no search", "adam groups", "poisoned", "rising", "tolerances")
SOME = ("adam groups", "poisoned")
pytestmark = pytest.mark.filterwarnings("ignore:LBFGS. the loss or the gradient is not finite")


def test_the_numbers_are_those_of_one_process():
    """Five rows on two processes are uneven shards."""
    whole.assert_same(run_processes(2, whole.runs, "fsdp", NAMES, {}), whole.runs(None, NAMES, {}))


def four():
    return whole.runs("fsdp", SOME, {}), whole.runs("hsdp", SOME, {})


def test_a_process_that_holds_nothing_and_copies_of_shards():
    expected = whole.runs(None, SOME, {})
    for found in zip(*run_processes(4, four), strict=True):
        whole.assert_same(found, expected)


def low_precision():
    """(Losses of a run with bfloat16 arithmetic, of one with bfloat16 weights and wide copies.)"""
    found = []
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for dtype, policy, storage in (
        (torch.float32, policy, None),
        (torch.bfloat16, MixedPrecisionPolicy(), StorageOptions(master_weights=True)),
    ):
        net = fully_shard(whole.model(dtype), mp_policy=policy)
        opt = LBFGS(net.parameters(), scaling="adam", max_iter=10, storage=storage)
        loss = whole.Loss(net, opt, dtype=dtype)
        losses = [float(opt.step(loss)) for _ in range(4)]
        found.append((losses, whole.counts(opt), problem.vector(net.parameters()), opt.state_size()))
    return found


def refusals():
    net = problem.wrapped(whole.model(), "fsdp")
    messages = []
    for options in ({}, {"scaling": "adam", "storage": problem.SHARDED}, {"scaling": "adam", "process_group": "none"}):
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


def rest():
    return low_precision(), refusals(), failure()


def test_low_precision_refusals_and_errors():
    (precisions, messages, failed), (others, other_messages, other_failed) = run_processes(2, rest)
    for (losses, counts, weights, size), (_, other_counts, other_weights, other_size) in zip(
        precisions, others, strict=True
    ):
        assert losses[-1] < losses[0]
        assert counts == other_counts
        assert torch.equal(weights, other_weights)
        assert size > other_size  # three rows of five, and two
    for each in (messages, other_messages):
        assert [calls for _, calls in each] == [0, 0, 0]
        for (message, _), words in zip(each, ("give scaling='adam'", "sharded already", "leave it out"), strict=True):
            assert words in message
    assert "the closure raised an error in process 1" in failed[0]
    assert other_failed[0] == "of no use"
    assert torch.equal(failed[1], other_failed[1])
