"""torch.distributed.checkpoint: saved by some processes, loaded by others, and the run goes on as it would have."""

import copy

import problem
import pytest
import torch
import torch.distributed.checkpoint as dcp
from processes import run_processes
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

from adaqn import PairOptions
from inside import number

SAVED, GOING_ON = 23, 12
SHARDED = {"storage": problem.SHARDED}
SHARDED_KRONECKER = {**SHARDED, "preset": "kronecker"}
STRICT = {"pairs": PairOptions(fisher_size=7, eps=0.95)}


def made(kind, **options):
    net = problem.wrapped(problem.model(), kind)
    return net, problem.monitored(net, net.parameters(), "modern", **options)


def save(kind, folder, options):
    """Train, save, and go on; returns how it went on."""
    net, opt = made(kind, **options)
    problem.train(net, opt, SAVED)
    model_state, optimizer_state = get_state_dict(net, opt)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    return problem.train(net, opt, GOING_ON, start=SAVED), opt.stats


def load(kind, folder, options):
    net, opt = made(kind, **options)
    model_state, optimizer_state = get_state_dict(net, opt)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(net, opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert opt.stats.steps == SAVED
    return problem.train(net, opt, GOING_ON, start=SAVED), opt.stats


def run(count, function, kind, folder, options):
    """In one process without a group, too."""
    if count:
        return run_processes(count, function, kind, folder, options)
    return [function(kind, folder, options)]


@pytest.mark.parametrize(
    "before, after, options",
    [
        ((2, "fsdp"), (2, "fsdp"), {}),
        pytest.param((2, "fsdp"), (1, "fsdp"), {}, marks=pytest.mark.slow),  # as (0, None), without FSDP2
        ((2, "fsdp"), (0, None), {}),
        ((0, None), (2, "fsdp"), {}),
        ((4, "fsdp"), (2, "fsdp"), {}),
        ((2, "ddp"), (0, None), {}),
        ((0, None), (2, "ddp"), {}),
        ((2, "ddp"), (2, "ddp"), SHARDED),
        ((2, "ddp"), (0, None), SHARDED),
        ((0, None), (2, "ddp"), SHARDED),
        ((4, "ddp"), (2, "ddp"), SHARDED),
        ((2, "ddp"), (0, None), SHARDED_KRONECKER),
        ((2, "ddp"), (2, "ddp"), SHARDED_KRONECKER),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_run_goes_on_with_another_number_of_processes(before, after, options, tmp_path):
    (expected, stats), *_ = run(before[0], save, before[1], tmp_path, options)
    for path, their_stats in run(after[0], load, after[1], tmp_path, options):
        assert their_stats == stats
        if before == after:
            assert torch.equal(path, expected)
        assert torch.allclose(path, expected, rtol=0.0, atol=1e-9)


def full_state(kind, options):
    """The whole state on the first process, and back into a fresh optimizer."""
    net, opt = made(kind, **options)
    problem.train(net, opt, SAVED)
    whole = StateDictOptions(full_state_dict=True)
    saved = copy.deepcopy(get_optimizer_state_dict(net, opt, options=whole))
    weights = get_model_state_dict(net, options=whole)
    weights = {name: value.clone() for name, value in weights.items()}
    expected = problem.train(net, opt, GOING_ON, start=SAVED)
    other_net, other = made(kind, **options)
    set_model_state_dict(other_net, weights, options=whole)
    set_optimizer_state_dict(other_net, other, saved, options=whole)
    shape = tuple(saved["state"]["0.weight"]["pairs_s"].shape)
    return shape, torch.equal(problem.train(other_net, other, GOING_ON, start=SAVED), expected)


@pytest.mark.parametrize("kind, options", [("fsdp", {}), ("ddp", {}), ("ddp", SHARDED)], ids=str)
def test_the_whole_state_in_and_out(kind, options):
    shape = (3, 45) if options else (3, 9, 5)
    assert run_processes(2, full_state, kind, options) == [(shape, True)] * 2


def initial_step(kind, options):
    paths = []
    for is_asked in (True, False):
        net, opt = made(kind, **options)
        if is_asked:
            get_optimizer_state_dict(net, opt)
            assert opt.stats.steps == 0
        paths.append(problem.train(net, opt, 8))
    return torch.equal(*paths)


@pytest.mark.parametrize("kind, options", [("fsdp", {}), ("ddp", SHARDED)], ids=str)
def test_the_initial_step_of_distributed_checkpoint_leaves_no_trace(kind, options):
    assert run_processes(2, initial_step, kind, options) == [True, True]


def broadcast_from_the_first(kind, options):
    """(How a run goes on, how one goes on that got its state from process 0)."""
    net, opt = made(kind, **options)
    problem.train(net, opt, SAVED)
    whole = StateDictOptions(full_state_dict=True)
    states = get_model_state_dict(net, options=whole), get_optimizer_state_dict(net, opt, options=whole)
    states = copy.deepcopy(states)
    expected = problem.train(net, opt, GOING_ON, start=SAVED)
    net, opt = made(kind, **options)
    first = torch.distributed.get_rank() == 0
    sent = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(net, states[0] if first else {}, options=sent)
    set_optimizer_state_dict(net, opt, states[1] if first else {}, options=sent)
    return expected, problem.train(net, opt, GOING_ON, start=SAVED)


@pytest.mark.parametrize(
    "kind, options",
    [("ddp", {}), ("ddp", {"preset": "kronecker"}), ("ddp", SHARDED), ("fsdp", {})],
    ids=str,
)
def test_a_state_that_only_the_first_process_has(kind, options):
    for expected, path in run_processes(2, broadcast_from_the_first, kind, options):
        assert torch.equal(path, expected)


def saved_in_the_background(kind, folder, options):
    net, opt = made(kind, **options)
    problem.train(net, opt, SAVED)
    model_state, optimizer_state = get_state_dict(net, opt)
    state = {"model": model_state, "optimizer": copy.deepcopy(optimizer_state)}
    dcp.async_save(state, checkpoint_id=folder).result()
    return problem.train(net, opt, GOING_ON, start=SAVED), opt.stats


@pytest.mark.parametrize("kind, options", [("fsdp", {}), ("ddp", SHARDED)], ids=str)
def test_a_checkpoint_saved_in_the_background(kind, options, tmp_path):
    (expected, _), *_ = run_processes(2, saved_in_the_background, kind, tmp_path, options)
    for path, _ in run_processes(2, load, kind, tmp_path, options):
        assert torch.equal(path, expected)


def whole_into_slices():
    net, opt = made("ddp")
    problem.train(net, opt, SAVED)
    whole = StateDictOptions(full_state_dict=True)
    states = get_model_state_dict(net, options=whole), get_optimizer_state_dict(net, opt, options=whole)
    states = copy.deepcopy(states)
    expected = problem.train(net, opt, GOING_ON, start=SAVED)
    net, opt = made("ddp", **SHARDED)
    set_model_state_dict(net, states[0], options=whole)
    set_optimizer_state_dict(net, opt, states[1], options=whole)
    return expected, problem.train(net, opt, GOING_ON, start=SAVED)


def test_a_whole_state_into_sharded_history():
    for expected, path in run_processes(2, whole_into_slices):
        assert torch.allclose(path, expected, rtol=0.0, atol=1e-9)


def averaged(folder):
    """(The accepted average when saved, the one loaded by a fresh optimizer, the step that a rollback leads to)."""
    net, opt = made("ddp", **STRICT)
    problem.train(net, opt, 4)
    early = folder / "early"
    states = get_state_dict(net, opt)
    dcp.save(dict(zip("mo", states, strict=True)), checkpoint_id=early)
    with opt.averaged():
        pass
    step = 4
    while not number(opt, "skips_in_row"):
        problem.train(net, opt, 1, start=step)
        step += 1
    with opt.averaged():
        expected = problem.vector(net.parameters())
    dcp.save(dict(zip("mo", get_state_dict(net, opt), strict=True)), checkpoint_id=folder / "late")
    fresh, other = made("ddp", **STRICT)
    state = dict(zip("mo", get_state_dict(fresh, other), strict=True))
    dcp.load(state, checkpoint_id=folder / "late")
    set_state_dict(fresh, other, model_state_dict=state["m"], optim_state_dict=state["o"])
    with other.averaged():
        found = problem.vector(fresh.parameters())
    state = dict(zip("mo", get_state_dict(net, opt), strict=True))
    dcp.load(state, checkpoint_id=early)
    set_state_dict(net, opt, model_state_dict=state["m"], optim_state_dict=state["o"])
    return expected, found, opt.stats.steps


def test_the_accepted_average_is_part_of_a_checkpoint(tmp_path):
    for expected, found, steps in run_processes(2, averaged, tmp_path):
        assert torch.equal(found, expected)
        assert steps == 4
