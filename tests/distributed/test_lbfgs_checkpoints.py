"""L-BFGS and torch.distributed.checkpoint: saved by some processes, loaded by others, and the run goes on."""

import copy

import problem
import pytest
import torch
import torch.distributed.checkpoint as dcp
import whole
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

SHARDED = {"storage": problem.SHARDED}
RUNS = {
    "ddp": ("ddp", "no search, kronecker", {}),
    "slices": ("ddp", "groups", SHARDED),
    "fsdp": ("fsdp", "damped", {}),
    "fsdp, no search": ("fsdp", "no search", {}),
}
BEFORE, AFTER = 20, 10
FULL = StateDictOptions(full_state_dict=True)


def made(kind, name, options):
    net, opt = whole.made(kind, name, **options)
    return net, opt, whole.Loss(net, opt, name)


def save(folder, names):
    """By run how it went on behind the checkpoint, and whether asking for its state before had left a trace."""
    found = {}
    for key in names:
        net, opt, loss = made(*RUNS[key])
        get_optimizer_state_dict(net, opt)  # makes state, by a step of length 0 without a closure
        assert opt.stats.iterations == 0
        path = whole.trained(net, opt, loss, BEFORE)
        dcp.save(dict(zip("mo", get_state_dict(net, opt), strict=True)), checkpoint_id=folder / key)
        found[key] = path, whole.trained(net, opt, loss, AFTER), whole.counts(opt)
    return found


def load(folder, names, alone=False):
    found = {}
    for key in names:
        kind, name, options = RUNS[key]
        net, opt, loss = made(None if alone else kind, name, options)
        state = dict(zip("mo", get_state_dict(net, opt), strict=True))
        dcp.load(state, checkpoint_id=folder / key)
        set_state_dict(net, opt, model_state_dict=state["m"], optim_state_dict=state["o"])
        assert opt.stats.iterations == BEFORE
        found[key] = whole.trained(net, opt, loss, AFTER), whole.counts(opt)
    return found


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_run_goes_on_with_any_number_of_processes(tmp_path):
    saved = run_processes(2, save, tmp_path, tuple(RUNS))[0]
    for key, (path, _, _) in saved.items():
        net, opt, loss = made(None, RUNS[key][1], {})
        assert torch.allclose(whole.trained(net, opt, loss, BEFORE), path, rtol=0.0, atol=1e-9), key
    again = run_processes(2, load, tmp_path, tuple(RUNS))
    for loaded, same in ((again[0], True), (again[1], True), (load(tmp_path, tuple(RUNS), alone=True), False),
                         (run_processes(4, load, tmp_path, ("slices", "fsdp"))[3], False)):  # fmt: skip
        for key, (path, counts) in loaded.items():
            _, expected, expected_counts = saved[key]
            assert counts == expected_counts, key
            assert torch.equal(path, expected) or not same, key
            assert torch.allclose(path, expected, rtol=0.0, atol=1e-9), key


def whole_states():
    """The whole state into a fresh optimizer, from the first process alone too, and from whole vectors to slices."""
    found = {}
    first = torch.distributed.get_rank() == 0
    for key, (kind, name, options) in RUNS.items():
        net, opt, loss = made(kind, name, options)
        whole.trained(net, opt, loss, BEFORE)
        states = get_model_state_dict(net, options=FULL), get_optimizer_state_dict(net, opt, options=FULL)
        states = copy.deepcopy(states)
        expected = whole.trained(net, opt, loss, AFTER)
        sent = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        to_others = {"other": SHARDED if not options and kind == "ddp" else options}
        for way, how in (("same", FULL), ("sent", sent), ("other", FULL)):
            net, opt, loss = made(kind, name, to_others.get(way, options))
            given = copy.deepcopy(states) if first or way != "sent" else ({}, {})  # torch empties what it is given
            set_model_state_dict(net, given[0], options=how)
            set_optimizer_state_dict(net, opt, given[1], options=how)
            found[key, way] = float((whole.trained(net, opt, loss, AFTER) - expected).abs().max())
    return found


def test_the_whole_state_in_and_out():
    for found in run_processes(2, whole_states):
        for (key, way), difference in found.items():
            assert difference <= (1e-9 if way == "other" else 0.0), (key, way)
