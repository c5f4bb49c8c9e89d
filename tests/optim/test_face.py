"""The arguments: few, documented, with one meaning of None; and every name of 0.1 says what to write instead."""

import inspect
import re
from dataclasses import fields, is_dataclass, replace
from typing import get_args

import pytest
import torch
from torch import nn

import adaqn
import inside
from adaqn import OLBFGS, PRESETS, RES, SQN, AdaQN, PairOptions, Preset, RejectOptions, SdLBFGS, StorageOptions
from adaqn.core.acceptance import FactorTest, PairedTest
from adaqn.core.scaling_names import SCALINGS
from adaqn.optim.settings import PresetName, ScalingName
from oracles import NoisyValley, Vector, run

PARTS = {"pairs": PairOptions, "reject": RejectOptions, "storage": StorageOptions}
FAMILY = [OLBFGS, RES, SdLBFGS, SQN]


def parameter():
    return [nn.Parameter(torch.ones(2))]


# ---------------------------------------------------------------------- signature and documentation


def test_the_arguments_are_those_of_the_contract():
    parameters = list(inspect.signature(AdaQN).parameters.values())
    assert [p.name for p in parameters if p.kind is not p.VAR_KEYWORD] == [
        "params", "lr", "monitor", "preset", "cycle_length", "scaling", "momentum", "nesterov", "warm_up", "averaging",
        "pairs", "reject", "storage", "weight_decay", "maximize", "on_nonfinite", "on_cycle", "process_group",
    ]  # fmt: skip
    assert len([p for p in parameters if p.kind is not p.VAR_KEYWORD]) <= 18


def documented(kind):
    """The names under ``Args:``, in order."""
    text = inspect.getdoc(kind).partition("Args:\n")[2]
    return re.findall(r"^    (\w+): ", text, flags=re.M)


@pytest.mark.parametrize("kind", [AdaQN, *FAMILY], ids=lambda kind: kind.__name__)
def test_every_argument_is_documented_in_the_order_of_the_signature(kind):
    names = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is not p.VAR_KEYWORD]
    found = documented(kind)
    assert [name for name in found if name in names] == names
    assert set(found) - set(names) <= {"common"}


@pytest.mark.parametrize("kind", [*PARTS.values()], ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind):
    assert is_dataclass(kind)
    source = inspect.getsource(kind)
    for field in fields(kind):
        assert re.search(rf'^    {field.name}: .*= .*\n    """', source, flags=re.M), field.name


@pytest.mark.parametrize("kind", [*PARTS.values(), Preset], ids=lambda kind: kind.__name__)
def test_the_parts_cannot_be_changed_by_accident(kind):
    value = kind()
    with pytest.raises(AttributeError):
        setattr(value, fields(kind)[0].name, 3)
    assert value == kind()


def test_everything_of_the_face_is_exported():
    wanted = {
        "PairOptions", "RejectOptions", "StorageOptions", "Preset", "Scaling", "Adagrad", "RMSProp", "Adam",
        "Kronecker", "BarzilaiBorwein", "Curvature", "AccumulatedFisher", "BatchCurvature", "QuasiNewton", "AdaQN",
        "OLBFGS", "RES",
        "SQN", "SdLBFGS", "PRESETS", "Monitor", "RotatingMonitor", "EmpiricalFisher", "HessianProduct", "Outcome",
        "Stats", "CycleEvent",
    }  # fmt: skip
    assert wanted <= set(adaqn.__all__)
    assert all(hasattr(adaqn, name) for name in adaqn.__all__)


def test_what_is_no_longer_public_is_gone():
    opt = AdaQN(parameter(), reject="none")
    for name, instead in {"options": "opt.scaling", "recent": "on_cycle=", "finish_cycle": "by themselves"}.items():
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': .*{instead}"):
            getattr(opt, name)
    assert not hasattr(opt, "never_there")


# ---------------------------------------------------------------------- None is not given, 0 is never


def test_none_means_not_given_everywhere():
    names = [p.name for p in inspect.signature(AdaQN).parameters.values() if p.default is None]
    nothing = {"pairs": PairOptions(), "reject": RejectOptions(), "storage": StorageOptions()}
    problem, paths = NoisyValley(), []
    for options in ({}, dict.fromkeys(names), nothing):
        model = Vector(problem.w0)
        opt = AdaQN(model.parameters(), **{**options, "monitor": lambda m=model: problem.loss(m.vector())})
        paths.append(run(opt, model, problem, range(40)))
        assert opt.stats.cycles == 8
        assert opt.stats.stored == 0
    assert torch.equal(paths[0], paths[1])
    assert torch.equal(paths[0], paths[2])


def test_zero_switches_off():
    off = AdaQN(
        parameter(), preset="modern", momentum=0.0, pairs=PairOptions(damping=0, anchor_patience=0),
        reject=RejectOptions(window=0, patience=0),
    )  # fmt: skip
    method = inside.method(off)
    assert method.repair is None
    assert (method.anchor_patience, method.judge.window, method.judge.patience) == (0, 0, 0)
    assert off.param_groups[0]["momentum"] == 0.0


# ---------------------------------------------------------------------- presets


def test_what_is_given_goes_before_the_preset_field_by_field():
    opt = AdaQN(
        parameter(), 0.5, preset="modern", momentum=0.0, pairs=PairOptions(memory_size=7),
        reject=RejectOptions(factor=1.5),
    )  # fmt: skip
    method, modern = inside.method(opt), PRESETS["modern"]
    assert (method.memory_size, method.curvature.rows) == (7, modern.pairs.fisher_size)
    assert method.repair.share == modern.pairs.damping
    assert method.judge.window == modern.reject.window
    assert isinstance(method.judge.test, PairedTest)
    assert (method.judge.test.level, method.judge.test.fallback.factor) == (modern.reject.level, 1.5)
    assert (opt.defaults["lr"], opt.defaults["momentum"]) == (0.5, 0.0)


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_given_in_words_is_the_preset(name):
    """All of its fields, spelled out beside another preset, make the same optimizer."""
    problem, preset, paths = NoisyValley(), PRESETS[name], []
    spelled = {field.name: getattr(preset, field.name) for field in fields(preset)}
    for options in ({"preset": name}, {"preset": "paper" if name != "paper" else "modern", **spelled}):
        model = Vector(problem.w0)
        opt = AdaQN(model.parameters(), monitor=lambda m=model: problem.loss(m.vector()), **options)
        paths.append(run(opt, model, problem, range(40)))
    assert torch.equal(*paths)


def test_presets_leave_no_field_open():
    for preset in PRESETS.values():
        for part in (preset, preset.pairs, preset.reject):
            assert all(getattr(part, field.name) is not None for field in fields(part))
    assert PRESETS["paper"].pairs.memory_size == 10
    assert replace(PRESETS["modern"].pairs, memory_size=5).fisher_size == PRESETS["modern"].pairs.fisher_size


def test_reject_by_its_name_is_that_test_with_the_numbers_of_the_preset():
    method = inside.method(AdaQN(parameter(), preset="modern", reject="factor"))
    assert isinstance(method.judge.test, FactorTest)
    assert (method.judge.test.factor, method.judge.window) == (1.01, 10)
    own = lambda new, old: False  # noqa: E731
    assert inside.method(AdaQN(parameter(), reject=own)).judge.test is own
    assert inside.method(AdaQN(parameter(), reject="none")).judge.test is None


def test_auto_for_reject_is_refused_in_words():
    for reject in ("auto", RejectOptions(test="auto")):
        with pytest.raises(ValueError, match="reject='auto' is now reject='paired'"):
            AdaQN(parameter(), reject=reject)


# ---------------------------------------------------------------------- cycles


@pytest.mark.parametrize(
    "given, first, bounds", [("auto", 5, (2, 20)), ((2, 8), 5, (2, 8)), ((7, 9), 7, (7, 9)), (4, 4, None)]
)
def test_cycle_length_is_a_number_or_adapts_between_two(given, first, bounds):
    opt = AdaQN(parameter(), reject="none", cycle_length=given)
    assert opt.stats.cycle_length == first
    assert inside.method(opt).cycle_bounds == bounds


# ---------------------------------------------------------------------- the names of 0.1


OLD = {
    # name in 0.1: (a value, what it is now)
    "acceptance": ("none", {"reject": "none"}),
    "reject_factor": (1.05, {"reject": RejectOptions(factor=1.05)}),
    "paired_level": (2.0, {"reject": RejectOptions(level=2.0)}),
    "reject_window": (7, {"reject": RejectOptions(window=7)}),
    "reject_patience": (4, {"reject": RejectOptions(patience=4)}),
    "momentum_on_reject": ("keep", {"reject": RejectOptions(reset_momentum=False)}),
    "reset_scaling_on_reject": (True, {"reject": RejectOptions(reset_scaling=True)}),
    "memory_size": (5, {"pairs": PairOptions(memory_size=5)}),
    "fisher_size": (20, {"pairs": PairOptions(fisher_size=20)}),
    "curvature": ("accumulated_fisher", {"pairs": PairOptions(curvature="accumulated_fisher")}),
    "damping": (0.1, {"pairs": PairOptions(damping=0.1)}),
    "anchor_patience": (3, {"pairs": PairOptions(anchor_patience=3)}),
    "direction": ("two_loop", {"pairs": PairOptions(direction="two_loop")}),
    "curvature_test": ("absolute", {"pairs": PairOptions(test="absolute")}),
    "curvature_eps": (1e-3, {"pairs": PairOptions(eps=1e-3)}),
    "fisher_batch_size": (4, {"pairs": PairOptions(curvature=adaqn.AccumulatedFisher(50, batch_size=4))}),
    "history_dtype": (torch.bfloat16, {"storage": StorageOptions(history_dtype=torch.bfloat16)}),
    "fisher_dtype": (torch.bfloat16, {"storage": StorageOptions(fisher_dtype=torch.bfloat16)}),
    "fisher_device": ("cpu", {"storage": StorageOptions(fisher_device="cpu")}),
    "master_weights": (True, {"storage": StorageOptions(master_weights=True)}),
    "shard_history": (True, {"storage": StorageOptions(shard_history=True)}),
    "min_cycle_length": (3, {"cycle_length": (3, 20)}),
    "max_cycle_length": (8, {"cycle_length": (2, 8)}),
    "scaling_eps": (1e-6, {"scaling": adaqn.Kronecker(eps=1e-6)}),
}


@pytest.mark.parametrize("name", list(OLD))
def test_a_name_of_before_says_what_to_write_and_that_works(name):
    value, now = OLD[name]
    with pytest.raises(TypeError, match=f"AdaQN has no argument '{name}': write ") as raised:
        AdaQN(parameter(), **{name: value})
    advice = str(raised.value).partition(": write ")[2]
    found = eval(f"dict({advice})", {"adaqn": adaqn, "torch": torch})
    AdaQN(parameter(), **found)
    assert found.keys() == now.keys()
    if name == "scaling_eps":
        assert (type(found["scaling"]), found["scaling"].eps) == (adaqn.Kronecker, value)
    elif name == "fisher_batch_size":
        assert (found["pairs"].curvature.rows, found["pairs"].curvature.batch_size) == (50, value)
    else:
        assert found == now


@pytest.mark.parametrize("odd", [[], {}, None, 3])
def test_an_odd_preset_does_not_hide_what_to_write(odd):
    with pytest.raises(TypeError, match="AdaQN has no argument 'memory_size': write "):
        AdaQN([torch.nn.Parameter(torch.ones(2))], preset=odd, memory_size=3)


@pytest.mark.parametrize(
    "given, advice",
    [
        ({"acceptance": "auto"}, "reject='paired'"),
        ({"anchor_patience": None}, "anchor_patience=0"),
        ({"reject_patience": None}, "patience=0"),
        ({"momentum_on_reject": "reset"}, "reset_momentum=True"),
        ({"scaling_eps": 1e-6}, r"Kronecker\(eps=1e-06\)"),
        ({"scaling_eps": 1e-6, "preset": "paper"}, r"Adagrad\(eps=1e-06\)"),
        ({"memory_size": 3, "fisher_size": 9}, r"PairOptions\(memory_size=3, fisher_size=9\)$"),
        ({"fisher_batch_size": 4}, "batch_size=4"),
    ],
    ids=str,
)
def test_values_of_before_are_translated_too(given, advice):
    with pytest.raises(TypeError, match=advice):
        AdaQN(parameter(), **given)


def test_names_that_never_were_are_refused_too():
    with pytest.raises(TypeError, match="learning_rate"):
        AdaQN(parameter(), learning_rate=0.1)


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["history_dtype", "master_weights", "shard_history"])
def test_the_family_says_so_too(kind, name):
    with pytest.raises(TypeError, match=rf"{name}.*storage=.*StorageOptions\({name}="):
        kind(parameter(), **{name: OLD[name][0], **({"curvature": adaqn.AccumulatedFisher()} if kind is SQN else {})})


def test_every_scaling_and_preset_is_known_to_type_checkers_by_its_name():
    assert set(get_args(ScalingName)) == set(SCALINGS)
    assert set(get_args(PresetName)) == set(PRESETS)


def test_the_family_is_told_only_what_it_has():
    with pytest.raises(TypeError, match=r"OLBFGS has no argument 'acceptance'$"):
        OLBFGS(parameter(), acceptance="none")
    with pytest.raises(TypeError, match=r"write storage=adaqn\.StorageOptions\(master_weights=True\)$"):
        RES(parameter(), master_weights=True)
