"""Every message of ``opt.explain()``: a run that provokes it, and one, changed as it says, that does not."""

import copy
import inspect
import json
import math
import pickle
import re
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import adaqn.explain
import inside
from adaqn import (
    OLBFGS,
    RES,
    SQN,
    AdaQN,
    EmpiricalFisher,
    HessianProduct,
    Monitor,
    PairOptions,
    RejectOptions,
    RotatingMonitor,
    SdLBFGS,
    StorageOptions,
)
from adaqn.explain.explanation import explain
from adaqn.explain.record import Record, record_of
from adaqn.optim.events import RECENT
from adaqn.optim.family import Common
from optim.table import OPTIMIZERS, Held, first, minus_first
from oracles import NoisyValley, Vector, as_printed, quiet, run, take_step

pytestmark = pytest.mark.filterwarnings(
    "ignore:50 cycles in a row", "ignore:no monitor was given", "ignore:the monitor returned"
)


class Examples:
    """The losses of ``count`` examples of a valley, whose gradients differ as those of its batches."""

    def __init__(self, problem, model, count=64):
        self.problem, self.model = problem, model
        self.noise = torch.randn(count, problem.n, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        self.noise -= self.noise.mean(0)

    def __call__(self):
        w = self.model.vector().double()
        return self.problem.loss(w) + self.problem.noise * (self.noise @ w)


def valley(make, steps=200, *, monitor=None, problem=None, dtype=torch.float64, **options):
    """A run over a valley; ``monitor(problem, model)`` makes the monitor."""
    problem = problem or NoisyValley()
    model = Vector(problem.w0.to(dtype))
    if monitor is not None:
        options["monitor"] = monitor(problem, model)
    opt = make(model.parameters(), **options)
    if steps:
        run(opt, model, problem, range(steps))
    return opt


GROWING = RejectOptions(growth=8.0)


def healthy(steps=200, **options):
    usual = {
        "preset": "modern", "lr": 0.05, "monitor": Examples, "pairs": PairOptions(memory_size=3), "warm_up": 0,
        "reject": RejectOptions(growth=1.0),
    }  # fmt: skip
    return valley(AdaQN, steps, **{**usual, **options})


def after_a_schedule(steps, lr, **options):
    """A run whose steps have become short as they were meant to."""
    opt = healthy(steps, lr=lr, **options)
    for group in opt.param_groups:
        group["initial_lr"] = 10 * lr
    return opt


def paper(steps=200, **options):
    scalar = lambda problem, model: lambda: problem.loss(model.vector().double())  # noqa: E731
    return valley(as_printed, steps, **{"lr": 0.05, "monitor": scalar, **options})


@cache
def well():
    return healthy()


@cache
def well_as_printed():
    return paper()


def spoilt(every, steps=200):
    """Some gradients of a run are not finite."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), lr=0.05)
    for k in range(steps):
        gradient = problem.gradient(model.vector(), k)
        model.set_gradient(gradient * math.nan if k % every == every - 1 else gradient)
        opt.step()
    return opt


def of_a_copy(problem, model):
    other = copy.deepcopy(model)
    return lambda: problem.loss(other.vector())


def in_half_precision(problem, model):
    """A monitor whose sums overflow in float16 when the weights are large."""
    return lambda: (2e3 * problem.loss(model.vector())).half().float()


def noisy(problem, model):
    """A rough function: the same at the same weights, and different by a few percent next to them."""

    def losses():
        w = model.vector()
        generator = torch.Generator().manual_seed(hash(tuple(w.tolist())) % 2**31)
        return problem.loss(w) * (1.0 + 0.04 * torch.randn((), generator=generator))

    return losses


def upside_down(problem, model):
    """Of all examples by the same, so that every rise matters (D38)."""
    losses = Examples(problem, model)

    def turned():
        found = losses()
        return -found.mean().expand(len(found))

    return turned


def worse_twice(problem, model):
    """In two cycles that lie close together, which halves the steps once (D15)."""
    losses, asked = Examples(problem, model), count(1)
    return lambda: losses() + (100.0 if next(asked) in (12, 14) else 0.0)


def rotating(problem, model, spoilt=False):
    """Three sets of examples, of which one has no finite loss."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return problem.loss(torch.cat([p.reshape(-1) for p in self.inner.pieces])) + x @ model.vector()

    data = [0.01 * torch.randn(40, problem.n, dtype=torch.float64) for _ in range(3)]
    if spoilt:
        data[2][0, 0] = math.inf
    return RotatingMonitor(Net(), lambda output, _: output, [(x, torch.zeros(40)) for x in data])


class Ascent(NoisyValley):
    """Gradients that lead uphill, as if the training data were not those of the monitor."""

    def gradient(self, w, k):
        return -super().gradient(w, k)


class Hill(NoisyValley):
    """A smooth hill: the curvature is negative everywhere."""

    def gradient(self, w, k):
        return -0.1 * w


class Fading(NoisyValley):
    """A loss whose scale falls by three decades in the middle of the run."""

    def gradient(self, w, k):
        return super().gradient(w, k) * (1.0 if k < 100 else 1e-3)


def on_hill(make, **options):
    return valley(make, 60, problem=Hill(), lr=0.01, **options)


def sqn(params, curvature, **options):
    return SQN(params, curvature=curvature, **options)


def as_curvature(params, curvature, **options):
    return quiet(params, pairs=PairOptions(curvature=curvature), **options)


def damped(params, curvature, **options):
    return quiet(params, pairs=PairOptions(curvature=curvature, damping=0.5), **options)


def hessian_on(kind, loss):
    """A method with the Hessian of half the square of its weights, or of the negative."""
    problem = Hill()
    params = [nn.Parameter(problem.w0.clone())]
    curvature = HessianProduct(Held(params), loss, [(torch.zeros(1), torch.zeros(1))])
    opt = kind(params, curvature, lr=0.01, cycle_length=2)
    for _ in range(60):
        params[0].grad = -0.1 * params[0].detach()
        opt.step()
    return opt


def large(steps, **options):
    """A million and a half parameters with a hundred and sixty vectors of history."""
    model = nn.Parameter(torch.zeros(1_600_000))
    opt = quiet([model], pairs=PairOptions(fisher_size=140), **options)
    for _ in range(steps):
        model.grad = torch.ones_like(model)
        opt.step()
    return opt


CASES = {
    # name: [(provoked by, what it says, what to change, a run without it), ...]
    "no-step": [(lambda: healthy(0), "no step has been made", r"loss\.backward\(\) before opt\.step\(\)", well)],
    "no-cycle": [(lambda: healthy(3), "3 steps, and no cycle has ended.*after 5", "^$", well)],
    "lr-zero": [(lambda: healthy(lr=0.0), "lr is 0", "lr above 0", well)],
    "diverged": [
        (
            lambda: valley(quiet, lr=3e38, dtype=torch.float32),
            r"\d+ times? the weights.*not finite.*were reset to the last good",
            r"lower lr, now 3e\+38, or clip",
            well,
        ),
        (
            lambda: valley(OLBFGS, lr=3e38, initial_scaling=1.0, dtype=torch.float32),
            "were reset to the last good",
            "lower lr",
            lambda: valley(OLBFGS),
        ),
    ],
    "nonfinite-gradients": [
        (
            lambda: spoilt(10),
            r"20 of 200 gradients held inf or nan.*were skipped \(10 %\)$",
            r"GradScaler.*set_detect_anomaly\(True\)",
            well,
        ),
        (lambda: spoilt(10, 400), r"40 of 400 .*\(10 %\), 20 of them in the last 40 cycles$", "GradScaler", well),
        (lambda: spoilt(100), r"note: 2 of 200 gradients .* \(1 %\)", "GradScaler", lambda: valley(quiet)),
    ],
    "blind-monitor": [
        (
            lambda: paper(monitor=of_a_copy),
            r"did not change in 39 cycles.* 12\.7 at both",
            "a copy of it",
            well_as_printed,
        ),
        (
            lambda: healthy(monitor=of_a_copy, pairs=PairOptions(memory_size=0)),
            r"did not change in \d+ cycles",
            "a copy of it",
            well,
        ),
    ],
    "monitor-not-finite": [
        (
            lambda: paper(lr=3.0, monitor=in_half_precision),
            r"the monitored loss was inf at \d+ averages? of a cycle",
            r"lower lr.*autocast=torch\.bfloat16",
            lambda: paper(monitor=in_half_precision),
        )
    ],
    "set-cannot-judge": [
        (
            lambda: healthy(monitor=lambda p, m: rotating(p, m, spoilt=True)),
            r"on 13 monitoring sets the loss.*not finite",
            "leave out the batches",
            lambda: healthy(monitor=rotating),
        )
    ],
    "many-rejected": [
        (
            lambda: paper(lr=3.0, reject=RejectOptions(patience=0)),
            r"\d+ of 40 cycles rejected \(\d\d %\); the monitored loss had grown to [\d,]+ times its size",
            r"lower lr, now 3$",
            well_as_printed,
        ),
        (
            lambda: paper(monitor=noisy, reject=RejectOptions(patience=0)),
            r"of 40 cycles rejected.*grown by \d(\.\d)? % in the median",
            r"lower lr, now 0\.05, or enlarge the monitoring set, or .*reject='paired'",
            well,
        ),
        (
            lambda: healthy(60, monitor=upside_down),
            r"12 of 12 cycles rejected \(100 %\), and nothing was accepted",
            "lower is better",
            well_as_printed,
        ),
    ],
    "steps-shrunk": [
        (
            lambda: healthy(lr=3.0),
            r"shrunk the steps to [\d.]+ % of lr=3, that is 0\.0\d+; every accepted cycle .* 2 %, \d+ more",
            r"lr=0\.0\d+ if they do not recover",
            well,
        ),
        (lambda: healthy(90, monitor=worse_twice), r"note: .* 5\d % of lr=0\.05", r"lr=0\.02\d+ if", well),
    ],
    "steps-smallest": [
        (
            lambda: healthy(30, monitor=upside_down, cycle_length=1),
            "still rejected, so probably not because of their length",
            "look at the monitor",
            well_as_printed,
        ),
        (
            lambda: healthy(200, monitor=upside_down),
            "still rejected, so probably not because of their length",
            "look at the monitor",
            well_as_printed,
        ),
    ],
    "accepted-rise": [
        (
            lambda: paper(100, problem=Ascent(), lr=0.01, reject=RejectOptions(factor=1.05)),
            r"got worse by \d+ % in all 20 cycles, in \d+ of \d+ accepted",
            r"lower lr, now 0\.01; a larger monitoring set, or reject=RejectOptions\(factor=\.\.\.\) below 1\.05",
            well_as_printed,
        ),
        (
            lambda: healthy(monitor=lambda _, m: Examples(NoisyValley(noise=100.0), m), problem=Ascent()),
            "got worse by",
            r"reject=RejectOptions\(level=\.\.\.\) below 3",
            well,
        ),
    ],
    "slow": [
        (
            lambda: healthy(lr=1e-4),
            r"none of 40 cycles rejected, .* fell in (39|40) of 40 of them, by [\d.]+ % in all",
            r"try lr=0\.0003, three times as much",
            well,
        ),
        (
            lambda: healthy(500, lr=5e-3, pairs=None),
            r"none of the last 40 cycles rejected, .* fell in (3[6-9]|40) of 40 of them, by \d\d(\.\d)? % in all",
            r"try lr=0\.015, three times as much",
            lambda: after_a_schedule(500, lr=5e-3, pairs=None),
        ),
        (
            lambda: healthy(400, lr=1e-5, reject=GROWING),
            r"steps have grown to 8 times lr, their limit, none of the last 40 .* fell in (39|40) of 40 of them",
            r"try lr=3e-05, three times as much",
            lambda: healthy(95, lr=5e-3, reject=GROWING),  # these still grow by themselves
        ),
    ],
    "skipped-small": [
        (
            lambda: paper(problem=NoisyValley(scale=1e-3)),
            r"39 of 39 pairs skipped: curvature below 0\.0001 \(s·y/s·s is [\d.e-]+ in the median\)",
            r'use the scale-free test, .*PairOptions\(test="scale_free"\)',
            lambda: paper(problem=NoisyValley(scale=1e-3), pairs=PairOptions(test="scale_free")),
        ),
        (
            lambda: healthy(pairs=PairOptions(eps=0.999)),
            r"the cosine between s and y is 0\.\d+ in the median, and eps asks for 0\.999",
            r"pairs=PairOptions\(eps=\.\.\.\) below 0\.\d+, .*fisher_size.* above 50",
            well,
        ),
        (
            lambda: healthy(pairs=PairOptions(test=lambda *_: False)),
            "your test rejected them",
            "ss, sy and yy",
            well,
        ),
        (
            lambda: valley(RES, curvature_eps=1e3),
            r"40 of 40 pairs skipped: curvature below 1e\+03",
            r"a curvature_eps below \d",
            lambda: valley(RES),
        ),
    ],
    "skipped-flat": [
        (
            lambda: paper(problem=NoisyValley(scale=3e-12), dtype=torch.float32, scaling="adam"),
            "39 of 39 pairs skipped: y is zero",
            r"PairOptions\(damping=0\.5\).* or scale the loss up",
            lambda: paper(
                problem=NoisyValley(scale=3e-12), dtype=torch.float32, scaling="adam", pairs=PairOptions(damping=0.5)
            ),
        ),
    ],
    "skipped-still": [
        (
            lambda: healthy(lr=1e-5, dtype=torch.bfloat16),
            "did not move at all",
            r"storage=StorageOptions\(master_weights=True\): steps with lr=1e-05 may be too small for bfloat16",
            lambda: healthy(lr=1e-5, dtype=torch.bfloat16, storage=StorageOptions(master_weights=True)),
        ),
        (lambda: healthy(lr=0.0), "did not move at all", "raise lr", well),
    ],
    "skipped-negative": [
        (
            lambda: on_hill(OLBFGS),
            "curvature along s is negative, -0.1",
            "regularisation",
            lambda: on_hill(OLBFGS, regularisation=1.0),
        ),
        (lambda: valley(RES, delta=50.0), "after subtracting delta", "a smaller delta", lambda: valley(RES)),
        (
            lambda: hessian_on(sqn, minus_first),
            "curvature along s is negative, -1 in the median",
            "larger batches for the curvature; SdLBFGS",
            lambda: hessian_on(sqn, first),
        ),
        (
            lambda: hessian_on(as_curvature, minus_first),
            "negative",
            r"damping=0\.5",
            lambda: hessian_on(damped, minus_first),
        ),
    ],
    "skipped-overflow": [
        (
            lambda: paper(problem=NoisyValley(scale=1e12), dtype=torch.float32),
            r"39 of 39 pairs skipped: s·y or y·y is not finite",
            "clip the gradients",
            lambda: paper(dtype=torch.float32),
        )
    ],
    "nothing-stored": [
        (
            lambda: paper(problem=NoisyValley(scale=1e-3)),
            "no pair stored for 40 cycles: only H0 is used",
            "without pairs does the same at a lower cost",
            lambda: paper(problem=NoisyValley(scale=1e-3), pairs=PairOptions(test="scale_free")),
        ),
        (
            lambda: paper(problem=Fading(), steps=700, pairs=PairOptions(fisher_size=20, memory_size=4)),
            r"no pair stored for \d+ cycles: the 4 pairs in memory are older",
            "without pairs",
            well_as_printed,
        ),
    ],
    "anchor-waits": [
        (
            lambda: paper(65, problem=NoisyValley(scale=1e-3)),
            "anchor has not moved for 12 cycles.*after 8 more skips",
            r"pairs=PairOptions\(anchor_patience=5\)",
            well_as_printed,
        )
    ],
    "anchor-stuck": [
        (
            lambda: paper(problem=NoisyValley(scale=1e-3), pairs=PairOptions(anchor_patience=0)),
            r"anchor has not moved for 39 cycles.*\(anchor_patience=0\)",
            r"pairs=PairOptions\(anchor_patience=20\); a rejection now would undo all these cycles",
            well_as_printed,
        )
    ],
    "no-monitor": [
        (
            lambda: healthy(monitor=None),
            "no monitor was given, so no cycle is rejected by its loss",
            r"opt\.monitor = Monitor\(model, loss_fn, batch\).*reject='none'",
            lambda: healthy(monitor=None, reject="none"),
        )
    ],
    "unused-monitor": [(lambda: healthy(reject="none"), "reject='none' never uses it", "reject='paired'", well)],
    "scalar-monitor": [
        (
            lambda: healthy(monitor=lambda p, m: lambda: p.loss(m.vector())),
            r"returns one number, so the factor test decides \(rejected if it grew by more than 1 %\)",
            "one loss per example, such as reduction='none'",
            well,
        )
    ],
    "few-examples": [
        (
            lambda: healthy(monitor=lambda p, m: Examples(p, m, 8)),
            "judged by 8 examples",
            "a hundred examples or more",
            well,
        )
    ],
    "cycle-longest": [
        (
            lambda: valley(quiet, 150, cycle_length=(2, 8), pairs=PairOptions(eps=1e9)),
            "grown to their longest, 8 steps",
            r"cycle_length=\(2, 16\)",
            well,
        )
    ],
    "cycle-shortest": [
        (
            lambda: valley(quiet, 60, problem=NoisyValley(noise=0.0), cycle_length="auto", lr=0.001),
            "shrunk to their shortest, 2 steps",
            r"cycle_length=\(1, 20\) if that is cheap",
            well,
        )
    ],
    "cycle-length": [
        (
            lambda: valley(quiet, 200, cycle_length="auto", problem=NoisyValley(noise=1.0)),
            r"cycle_length, which adapts, is at \d+ steps, from \d+ to \d+ in the last 40 cycles",
            "^$",
            well,
        )
    ],
    "large-history": [
        (
            lambda: large(6),
            r"the history takes 1\.06 GB \(pairs 128 MB, gradients 896 MB, H0 6\.4 MB, others 25\.6 MB\)",
            r"bf16 would take 544 MB \(storage=StorageOptions\(history_dtype=torch\.bfloat16, "
            r"fisher_dtype=torch\.bfloat16\)\); pairs=PairOptions\(fisher_size=10\) would take 224 MB; "
            r"pairs=PairOptions\(curvature=EmpiricalFisher\(\.\.\.\)\) 160 MB",
            lambda: large(6, storage=StorageOptions(history_dtype=torch.bfloat16, fisher_dtype=torch.bfloat16)),
        ),
        (
            lambda: OLBFGS([nn.Parameter(torch.zeros(10_000_000))], memory_size=20),
            r"1\.8 GB \(pairs 1\.6 GB, gradients 40 MB",
            r"bf16 would take 980 MB \(storage=StorageOptions\(history_dtype=torch\.bfloat16\)\); memory_size=10 "
            "about 1 GB",
            lambda: OLBFGS([nn.Parameter(torch.zeros(10_000_000))], memory_size=5),
        ),
    ],
}
EVERY = [pytest.param(name, *case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]


def check_that_it_can_be_written(advice, kind):
    """Every ``name=`` in it is an argument of what it is written in: of the optimizer's class, or of a call within."""
    inner = re.compile(r"(\w+)\(([^()]*)\)")
    while found := inner.search(advice):
        called, given = getattr(adaqn, found[1], None), re.findall(r"(\w+)=", found[2])
        if given:
            assert set(given) <= set(inspect.signature(called).parameters), found[0]
        advice = advice.replace(found[0], found[1])
    known = {*inspect.signature(kind).parameters, *(() if kind is AdaQN else Common.__annotations__), "reduction"}
    assert set(re.findall(r"(\w+)=", advice)) <= known, advice


@pytest.mark.parametrize("name, provoked, what, change, without", EVERY)
def test_every_message_has_a_run_that_provokes_it_and_one_that_does_not(name, provoked, what, change, without):
    opt = provoked()
    said = {finding.name: finding for finding in opt.explain().findings}
    assert name in said
    assert re.search(what, str(said[name]).split("\n")[0])
    assert re.search(change, said[name].change)
    check_that_it_can_be_written(said[name].change, type(opt))
    assert name not in {finding.name for finding in without().explain().findings}


def test_there_is_a_case_for_every_message():
    (folder,) = adaqn.explain.__path__
    # Those of whole gradients have theirs in tests/fullbatch/test_telling.py.
    paths = [path for path in Path(folder).glob("*.py") if path.name != "fullbatch.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    names = set(re.findall(r'Finding\(\s*"([a-z-]+)"', text))
    reasons = re.search(r"^STILL, .* = (.*)$", text, flags=re.M).group(1)
    names |= {f"skipped-{reason}" for reason in re.findall(r'"(\w+)"', reasons)}
    assert names == set(CASES)
    page = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in page] == []


# ---------------------------------------------------------------------- runs in which all is well


@pytest.mark.parametrize("preset", ["paper", "modern", "kronecker"])
def test_a_healthy_run_has_nothing_to_change(preset):
    found = healthy(preset=preset, lr=0.03).explain()
    assert found.is_well
    assert found.findings == ()
    assert str(found).endswith("\nnothing to change")
    assert "200 steps, 40 cycles with 39 stored, 0 skipped and 0 rejected" in found.summary[0]


@pytest.mark.parametrize("preset", ["modern", "kronecker"])
def test_nobody_misses_pairs_that_were_not_asked_for(preset):
    opt = healthy(600, preset=preset, lr=0.03, pairs=None)
    found = opt.explain()
    assert opt.stats.stored == 0
    assert found.findings == ()
    assert re.search(r"120 cycles with \d rejected; no pairs are kept", found.summary[0])
    assert re.fullmatch(r"the last 40 cycles: \d\d kept(, \d rejected)?", found.summary[1])


def test_what_is_to_be_large_may_grow():
    found = healthy(problem=Ascent(), monitor=upside_down, maximize=True).explain()
    assert found.findings == ()
    assert re.search("from -.* to -1", found.summary[-1])
    falling = healthy(monitor=upside_down, maximize=True, reject=lambda new, old: False)
    assert "accepted-rise" in {finding.name for finding in falling.explain().findings}


def test_a_network_in_training_has_nothing_to_change():
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), nn.MSELoss()
    inputs = torch.randn(512, 8)
    targets = torch.sin(inputs.sum(1, keepdim=True))
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, (inputs[:128], targets[:128])))
    for _ in range(12):
        for x, y in zip(inputs.split(32), targets.split(32), strict=True):
            opt.zero_grad()
            loss_fn(model(x), y).backward()
            opt.step()
    assert opt.explain().findings == ()
    curvature = EmpiricalFisher(model, lambda a, b: (a - b).square()[:, 0], [(x, y)])
    opt = AdaQN(model.parameters(), pairs=PairOptions(curvature=curvature))
    assert "gradients" not in opt.explain().summary[1]


@pytest.mark.parametrize("info", OPTIMIZERS, ids=lambda info: info.name)
def test_every_method_explains_itself_before_and_after(info):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = info(model.parameters())
    assert "no-step" in {finding.name for finding in opt.explain().findings}
    run(opt, model, problem, range(60))
    found = opt.explain()
    assert (
        f"{type(opt).__name__}, lr={opt.param_groups[0]['lr']}: 60 steps" in found.summary[0] or info.name == "sdlbfgs"
    )
    assert not {"no-step", "no-cycle"} & {finding.name for finding in found.findings}
    for finding in found.findings:
        check_that_it_can_be_written(finding.change, type(opt))


@pytest.mark.parametrize("make", [OLBFGS, RES, SdLBFGS])
def test_the_family_has_no_monitor_and_needs_none(make):
    found = valley(make).explain()
    assert found.findings == ()
    assert found.is_well


# ---------------------------------------------------------------------- the record


def test_explaining_changes_nothing():
    problem = NoisyValley()
    quietly, told = Vector(problem.w0), Vector(problem.w0)
    one, other = (AdaQN(m.parameters(), lr=0.5, monitor=Examples(problem, m)) for m in (quietly, told))
    for k in range(60):
        for opt, model in ((one, quietly), (other, told)):
            take_step(opt, lambda m=model, k=k: m.set_gradient(problem.gradient(m.vector(), k)))
        str(other.explain())
        assert torch.equal(quietly.vector(), told.vector())
    assert one.state_dict().keys() == other.state_dict().keys()


def test_it_prints_nothing_by_itself(capsys):
    healthy(20).explain()
    assert capsys.readouterr() == ("", "")


def test_after_loading_a_state_the_totals_are_known_and_the_new_cycles_and_it_says_so():
    problem = NoisyValley()
    model = Vector(problem.w0)
    options = {"preset": "modern", "lr": 0.05, "monitor": Examples(problem, model), "pairs": PairOptions(memory_size=3)}
    opt = AdaQN(model.parameters(), **options)
    run(opt, model, problem, range(100))
    other = AdaQN(model.parameters(), **options)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert not any(name.startswith("recent") for entry in opt.state_dict()["state"].values() for name in entry)
    run(other, model, problem, range(100, 110))
    found = other.explain()
    assert "110 steps, 22 cycles" in found.summary[0]
    assert found.summary[1] == "2 cycles known in detail: the others came before a state was loaded"
    run(other, model, problem, range(110, 110 + 5 * RECENT))
    assert not record_of(other).forgotten
    assert len(inside.recent(other)) == RECENT
    assert re.match(r"the last 40 cycles: \d\d stored", other.explain().summary[1])


def test_a_state_that_says_enough_is_explained_without_its_cycles():
    opt = paper(problem=NoisyValley(scale=1e-3))
    other = as_printed(Vector(NoisyValley().w0).parameters(), monitor=lambda: 1.0)
    other.load_state_dict(opt.state_dict())
    assert {"nothing-stored", "anchor-waits"} <= {finding.name for finding in other.explain().findings}


def test_the_record_is_copied_with_the_optimizer_and_survives_json():
    opt = paper(lr=3.0, monitor=in_half_precision)  # losses that are not finite among them
    record = record_of(opt)
    assert any(not math.isfinite(cycle.candidate_loss) for cycle in record.cycles)
    again = Record.from_json(json.loads(json.dumps(record.to_json(), allow_nan=False)))
    assert str(explain(again)) == str(opt.explain())
    assert repr(again) == repr(record)
    assert str(pickle.loads(pickle.dumps(healthy(50))).explain()) == str(healthy(50).explain())
    for damaged in ({}, {**record.to_json(), "cycles": [{"step": 1}]}, [], {**record.to_json(), "stats": 5}):
        with pytest.raises(ValueError, match="not the record of an optimizer"):
            Record.from_json(damaged)


def test_groups_of_several_step_sizes_are_told_as_a_range():
    w = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    opt = AdaQN([{"params": w[:1]}, {"params": w[1:], "lr": torch.tensor(0.25)}], lr=0.5, reject="none")
    assert "lr=0.25 to 0.5" in opt.explain().summary[0]
    assert opt.explain().as_dict()["findings"][0]["name"] == "no-step"


def test_the_end_of_a_schedule_is_no_alarm():
    opt = healthy()
    for group in opt.param_groups:
        group["lr"] = 0.0
    explanation = opt.explain()
    assert explanation.is_well
    assert "lr is 0 now: its schedule has ended" in str(explanation)


# ---------------------------------------------------------------------- with a schedule, and the default preset


def classifier(steps, lr=None, schedule=None, look=None):
    """A small classifier, trained with the default preset; ``look(opt)`` is called after every cycle."""
    torch.manual_seed(0)
    inputs = torch.randn(2000, 20)
    labels = (inputs @ torch.randn(20, 5) + inputs.square() @ torch.randn(20, 5)).argmax(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    options = {} if lr is None else {"lr": lr}
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, (inputs[:128], labels[:128])), **options)
    scheduler = schedule and schedule(opt)
    for step in range(steps):
        chosen = torch.randint(len(inputs), (64,))
        opt.zero_grad()
        loss_fn(model(inputs[chosen]), labels[chosen]).mean().backward()
        opt.step()
        if scheduler:
            scheduler.step()
        if look and step % 5 == 4:
            look(opt)
    return opt


def cosine(steps):
    return lambda opt: lr_scheduler.CosineAnnealingLR(opt, steps)


def one_cycle(steps, lr=0.004):
    return lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=lr, total_steps=steps + 1, cycle_momentum=False)


def advice(opt, name):
    return next((finding.change for finding in opt.explain().findings if finding.name == name), None)


@pytest.mark.parametrize("lr, steps", [(4e-5, 150), (4e-5, 300), (4e-5, 420), (3e-4, 300)])
def test_steps_that_are_far_too_short_are_told_before_during_and_after_a_schedule(lr, steps):
    """The advice is three times the step size that was asked for, whatever the schedule has made of it."""
    said = []
    opt = classifier(steps, lr, cosine(steps), look=lambda opt: said.append(advice(opt, "slow")))
    assert opt.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)
    assert said[:19] == [None] * 19  # too early to say
    assert all(f"try lr={3 * lr:.3g}" in words for words in said[20:])
    assert ("next time try" in said[20]) is (steps == 150)  # there lr is already below its half
    assert f"next time try lr={3 * lr:.3g} before its schedule, three times as much" in said[-1]


@pytest.mark.parametrize("schedule", [None, cosine(210)])
def test_steps_that_have_grown_for_forty_cycles_without_a_pause_were_too_short(schedule):
    opt = classifier(210, 1e-3, schedule)
    assert 4.0 < opt.stats.step_multiplier < 8.0
    assert "try lr=0.003" in advice(opt, "slow")


def test_steps_that_are_far_too_short_are_told_before_they_are_as_long_as_they_may_be():
    opt = classifier(125, lr=3e-4)
    assert opt.stats.step_multiplier < 3.0
    assert "try lr=0.0009, three times as much" in advice(opt, "slow")


@pytest.mark.parametrize(
    "steps, schedule",
    [
        (250, None),
        (150, cosine(150)),  # it ends before steps had a reason to become shorter
        (400, cosine(400)),
        (300, lambda opt: lr_scheduler.LinearLR(opt, 0.001, total_iters=200)),
        (300, lambda opt: lr_scheduler.LinearLR(opt, 0.001, total_iters=500)),  # it ends in the warm-up
        (300, one_cycle(300)),
    ],
)
def test_at_a_good_step_size_nobody_is_told_to_take_a_larger_one(steps, schedule):
    said = set()
    classifier(steps, schedule=schedule, look=lambda opt: said.add(advice(opt, "slow")))
    assert said == {None}


def test_the_step_size_of_a_schedule_that_rises_is_the_one_it_rises_to():
    opt = classifier(300, 1e-4, one_cycle(300, 1e-4))
    assert "next time try lr=0.0003" in advice(opt, "slow")


@pytest.mark.parametrize("pairs", [PairOptions(memory_size=3), None])
@pytest.mark.parametrize("monitor", [Examples, None])
def test_the_end_of_torchs_schedule_is_no_alarm(pairs, monitor):
    """Neither with pairs, nor without, nor without a monitor."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = AdaQN(
        model.parameters(), lr=0.05, pairs=pairs, monitor=monitor and monitor(problem, model),
        reject=None if monitor else "none",
    )  # fmt: skip
    schedule = lr_scheduler.CosineAnnealingLR(opt, 100)
    for k in range(100):
        run(opt, model, problem, range(k, k + 1))
        schedule.step()
    (found,) = (finding for finding in opt.explain().findings if finding.name == "lr-zero")
    assert (found.severity, found.change) == ("note", "")
    assert "lr=0 now, 0.05 before its schedule: 100 steps" in opt.explain().summary[0]


def test_a_schedule_that_never_let_the_weights_move_is_an_alarm():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = AdaQN(model.parameters(), lr=0.05, monitor=Examples(problem, model))
    lr_scheduler.LambdaLR(opt, lambda _: 0.0)
    run(opt, model, problem, range(30))
    assert "give an lr above 0" in advice(opt, "lr-zero")


@pytest.mark.parametrize("lr", [0.0, 1e-9, 2.0])
def test_what_rejections_did_to_the_steps_is_told_of_the_step_size_before_its_schedule(lr):
    opt = healthy(lr=3.0)
    shrunk = re.search(r"lr=\S+", advice(opt, "steps-shrunk"))[0]
    for group in opt.param_groups:
        group["initial_lr"], group["lr"] = 3.0, lr
    found = next(finding for finding in opt.explain().findings if finding.name == "steps-shrunk")
    assert re.search(r"of lr=3, that is 0\.0\d+ before its schedule", found.what)
    assert shrunk in found.change
    assert not re.search(r"(lr=|now )0[ ,;]", "".join(finding.change for finding in opt.explain().findings))


def test_a_monitor_with_the_wrong_sign_is_never_met_with_a_lower_lr():
    explanation = str(healthy(200, monitor=upside_down).explain())
    assert "look at the monitor" in explanation
    assert not re.search(r"lower lr|level", explanation)


def test_nobody_is_told_to_shorten_steps_that_do_not_move():
    """Every gradient is nan: neither the step size nor a monitor, which was not asked, is at fault."""
    p = nn.Parameter(torch.ones(3))
    opt = AdaQN([p], monitor=lambda: 1.0)
    for _ in range(2_500):
        p.grad = torch.full((3,), math.nan)
        opt.step()
    said = str(opt.explain())
    assert "lower lr" not in said
    assert "look at the monitor" not in said
    assert "inf or nan" in said
