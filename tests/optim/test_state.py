"""Saved state: torch's traps, one by one, and what is refused."""

import copy
import io
import math
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import inside
from adaqn import PairOptions
from oracles import SMALL, NoisyValley, Vector, as_printed, assert_same, quiet, run, with_history

OPTIONS = {"cycle_length": 3, "pairs": SMALL}


def trained(steps=23, dtype=torch.float64, **options):
    problem = NoisyValley()
    model = Vector(problem.w0).to(dtype)
    return with_history(model, problem, steps, **options), model, problem


def snapshot(opt):
    return copy.deepcopy(opt.state_dict())


def test_state_is_stacked_tensors_and_plain_numbers_keyed_by_parameter():
    opt, model, _ = trained()
    state = opt.state_dict()["state"]
    assert list(state) == [0, 1, 2]
    for entry, p in zip(state.values(), model.parameters(), strict=True):
        assert entry["pairs_s"].shape == (4, *p.shape)
        assert entry["fisher"].shape == (7, *p.shape)
        assert all(type(value) in (int, float, torch.Tensor) for value in entry.values())


def test_state_is_a_view_of_flat_buffers_and_is_saved_once():
    opt, model, _ = trained()
    assert len({opt.state[p]["fisher"].untyped_storage().data_ptr() for p in model.parameters()}) == 1
    large = Vector(torch.randn(40_006))
    opt = quiet(large.parameters())
    large.set_gradient(torch.randn(40_006))
    opt.step()
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    assert file.tell() < 1.02 * opt.state_size()


def test_loading_does_not_cast_float32_history_of_low_precision_parameters():
    opt, model, _ = trained(dtype=torch.bfloat16)
    other = quiet(Vector(model.vector()).to(torch.bfloat16).parameters(), **OPTIONS)
    other.load_state_dict(snapshot(opt))
    assert_same(opt.state_dict()["state"], other.state_dict()["state"])


def test_loaded_state_does_not_share_memory_with_its_source():
    opt, model, problem = trained()
    saved = opt.state_dict()
    other_model = Vector(model.vector())
    other = quiet(other_model.parameters(), **OPTIONS)
    other.load_state_dict(saved)
    before = snapshot(other)
    run(opt, model, problem, range(23, 40))
    assert_same(before["state"], other.state_dict()["state"])


def test_loading_drops_the_loss_at_the_anchor():
    """D7: the monitor of the new process may hold another set."""
    opt, _, problem = trained()
    model = Vector(problem.w0)
    other = as_printed(model.parameters(), lr=0.05, monitor=lambda: 1.0, **OPTIONS)
    run(other, model, problem, range(6))
    assert inside.anchor_losses(other) is not None
    other.load_state_dict(opt.state_dict())
    assert inside.anchor_losses(other) is None


def test_a_state_saved_before_the_first_step_loads():
    problem = NoisyValley()
    fresh = quiet(Vector(problem.w0).parameters(), **OPTIONS)
    opt, _, _ = trained()
    opt.load_state_dict(fresh.state_dict())
    assert opt.stats.steps == 0
    assert not opt.state


def test_hooks_of_others_see_what_they_expect():
    opt, model, _ = trained()
    other = quiet(Vector(model.vector()).parameters(), **OPTIONS)
    seen = []
    other.register_load_state_dict_pre_hook(lambda o, saved: seen.append(len(saved["state"])))
    other.register_load_state_dict_post_hook(lambda o: seen.append(o.stats.steps))
    other.load_state_dict(opt.state_dict())
    assert seen == [3, 23]


def test_the_state_of_a_partly_frozen_model_loads():
    model = Vector(torch.randn(12))
    model.pieces[1].requires_grad_(False)
    opt = quiet(model.parameters(), **OPTIONS)
    for _ in range(8):
        model.set_gradient(torch.randn(12))
        model.pieces[1].grad = None
        opt.step()
    twin = Vector(model.vector())
    twin.pieces[1].requires_grad_(False)
    other = quiet(twin.parameters(), **OPTIONS)
    other.load_state_dict(snapshot(opt))
    assert list(other.state_dict()["state"]) == [0, 2]
    assert_same(opt.state_dict()["state"], other.state_dict()["state"])


def altered(state_dict, **changes):
    state_dict = copy.deepcopy(state_dict)
    for entry in state_dict["state"].values():
        entry.update(changes)
    return state_dict


def adam_state():
    model = Vector(torch.ones(12, dtype=torch.float64))
    adam = torch.optim.Adam(model.parameters())
    model.set_gradient(torch.ones(12))
    adam.step()
    return adam.state_dict()


def state_of(**options):
    return trained(**options)[0].state_dict()


@pytest.mark.parametrize(
    "make, message",
    [
        (adam_state, r"torch's Adam or AdamW.*opt\.warm_start\(state\)"),
        (lambda: state_of(scaling="adam"), "other options.*'scaling_sum'.*'scaling_square_avg'"),
        (lambda: state_of(pairs=replace(SMALL, memory_size=5)), r"'pairs_s'.*\(5,\).*\(4,\).*memory_size"),
        (lambda: state_of(pairs=replace(SMALL, fisher_size=8)), r"'fisher'.*\(8,\).*\(7,\).*fisher_size"),
        (lambda: altered(state_of(), format=99), "format 99 .* reads 1"),
        (lambda: altered(state_of(), pairs_size=77), "'pairs_size'.*77, outside 0 to 4"),
        (lambda: altered(state_of(), anchor="gone"), "'anchor'.*is str, not a tensor"),
        (lambda: {"epoch": 3}, "no 'state' and 'param_groups'"),
        (lambda: quiet([torch.nn.Parameter(torch.ones(3))]).state_dict(), "of 1 parameters, and this optimizer has 3"),
    ],
    ids=["adam", "scaling", "memory", "fisher", "format", "corrupt", "type", "not-a-state", "parameters"],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(make, message):
    opt, model, problem = trained()
    before, weights = snapshot(opt), model.vector()
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(make())
    assert_same(before, opt.state_dict())
    assert torch.equal(model.vector(), weights)
    run(opt, model, problem, range(23, 30))
    assert opt.stats.steps == 30


def test_a_model_of_another_shape_is_refused():
    opt, _, _ = trained()
    other = quiet(Vector(torch.ones(14, dtype=torch.float64)).parameters(), **OPTIONS)
    with pytest.raises(ValueError, match=r"parameter 2 has shape .*\(2, 3\).*\(2, 4\)"):
        other.load_state_dict(opt.state_dict())


def test_a_truncated_file_is_one_error_and_changes_nothing(tmp_path):
    opt, _, _ = trained()
    path = tmp_path / "state.pt"
    torch.save(opt.state_dict(), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    before = snapshot(opt)
    with pytest.raises(RuntimeError, match="failed"):
        opt.load_state_dict(torch.load(path, weights_only=True))
    assert_same(before, opt.state_dict())


def test_the_initial_step_of_distributed_checkpoint_leaves_no_trace():
    """It calls step() with zero gradients and lr 0 to have the state made."""
    problem = NoisyValley()
    model, plain = Vector(problem.w0), Vector(problem.w0)
    opt = quiet(model.parameters(), **OPTIONS)
    saved = get_optimizer_state_dict(model, opt)
    assert saved["state"]["pieces.1"]["fisher"].shape == (7, 5)
    assert opt.stats.steps == 0
    assert inside.number(opt, "curvature_size") == 0
    expected = run(quiet(plain.parameters(), **OPTIONS), plain, problem, range(20))
    assert torch.equal(run(opt, model, problem, range(20)), expected)


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_distributed_checkpoint_round_trip(tensor_lr):
    opt, model, problem = trained()
    if tensor_lr:
        opt.param_groups[0]["lr"] = torch.tensor(0.05)
    saved = copy.deepcopy(get_optimizer_state_dict(model, opt))
    other_model = Vector(model.vector())
    other = quiet(other_model.parameters(), lr=torch.tensor(0.05) if tensor_lr else 0.05, **OPTIONS)
    set_optimizer_state_dict(other_model, other, saved)
    assert other.stats == opt.stats
    expected = run(opt, model, problem, range(23, 40))
    assert torch.equal(run(other, other_model, problem, range(23, 40)), expected)


def test_a_failed_step_can_be_tried_again():
    """on_nonfinite='raise' leaves everything as it was."""
    opt, model, _ = trained(on_nonfinite="raise")
    before = snapshot(opt)
    model.set_gradient(torch.full((12,), math.nan))
    with pytest.raises(FloatingPointError):
        opt.step()
    assert_same(before, opt.state_dict())


def test_state_is_saved_as_it_is_after_a_framework_has_put_copies_in_its_place():
    """Lightning moves every tensor of ``opt.state`` to the parameters' device, F̃ kept elsewhere too."""
    opt, model, problem = trained()
    for entry in opt.state.values():
        entry.update({name: value.clone() for name, value in entry.items() if isinstance(value, torch.Tensor)})
    run(opt, model, problem, range(23, 30))
    fisher = [entry["fisher"].reshape(len(entry["fisher"]), -1) for entry in opt.state_dict()["state"].values()]
    assert torch.equal(torch.cat(fisher, 1), inside.buffers(opt)["fisher"])


def test_a_state_with_pairs_says_what_an_optimizer_without_them_lacks():
    """Those of the default up to 0.2."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), preset="modern", pairs=PairOptions(memory_size=3, fisher_size=7))
    run(opt, model, problem, range(12))
    other = quiet(model.parameters(), preset="modern")
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=r"room for 3 pairs.*PairOptions\(memory_size=3, fisher_size=7\)"):
        other.load_state_dict(opt.state_dict())
    assert_same(before, other.state_dict())
