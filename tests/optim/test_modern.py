"""Beyond the paper: momentum, cycles that adapt, the paired test, D15, presets."""

import copy
import math
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import inside
from adaqn import PRESETS, AdaQN, Monitor, Outcome, RejectOptions, RotatingMonitor
from inside import kept, number
from oracles import NO_PAIRS, SMALL, NoisyValley, Vector, as_printed, dense_bfgs, quiet, run, with_history
from scripted import follow


class PerExample:
    """The losses of a valley for 64 examples whose gradients differ by the same noise as those of its batches."""

    def __init__(self, problem: NoisyValley, model: Vector) -> None:
        self.problem, self.model = problem, model
        self.noise = torch.randn(64, problem.n, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def __call__(self) -> torch.Tensor:
        w = self.model.vector()
        return self.problem.loss(w) + self.problem.noise * (self.noise @ w)


class Script:
    """A monitor that does as the script says, over and over: each letter is a cycle, accepted or rejected."""

    def __init__(self, letters: str) -> None:
        self.letters, self.cycle = letters, -1

    def advance(self) -> None:
        self.cycle, self.second = self.cycle + 1, False

    def __call__(self) -> float:
        new, self.second = not self.second, True
        rejected = self.letters[self.cycle % len(self.letters)] == "r"
        return 2.0 if new and rejected else 1.0


def modern(problem: NoisyValley, **options):
    model = Vector(problem.w0)
    return AdaQN(model.parameters(), preset="modern", monitor=PerExample(problem, model), **options), model


# ---------------------------------------------------------------------- momentum


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_with_adams_scaling_and_no_pairs_is_adam_or_nadam(nesterov):
    problem = NoisyValley()
    ours, theirs = Vector(problem.w0), Vector(problem.w0)
    opt = quiet(ours.parameters(), lr=0.02, scaling="adam", momentum=0.9, nesterov=nesterov, pairs=NO_PAIRS)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.02)
    if nesterov:  # so large a decay of its schedule leaves NAdam's momentum at β from the first step on
        adam = torch.optim.NAdam(theirs.parameters(), lr=0.02, momentum_decay=1e9)
    for k in range(60):
        for model in (ours, theirs):
            model.set_gradient(problem.gradient(theirs.vector(), k))
            if k % 4 == 1:
                model.pieces[1].grad = None
        opt.step()
        adam.step()
    # NAdam keeps the products of its momenta in float32
    assert (ours.vector() - theirs.vector()).abs().max() < (1e-6 if nesterov else 1e-12)
    assert opt.stats.stored == 0


def test_the_recursion_sees_the_averaged_gradient_and_the_fisher_matrix_the_raw_one():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem, scaling="adam", momentum=0.9, lr=0.01, cycle_length=5)
    stored, g = inside.pairs(opt), problem.gradient(model.vector(), 99)
    average = 0.9 * kept(opt, "momentum") + 0.1 * g
    before, count = model.vector(), opt.stats.steps + 1
    model.set_gradient(g)
    opt.step()
    root = (kept(opt, "scaling_square_avg") / (1 - 0.999**count)).sqrt()
    H = dense_bfgs([s for s, _ in stored], [y for _, y in stored], torch.diag(1.0 / (root + 1e-8)))
    torch.testing.assert_close(before - model.vector(), 0.01 * H @ (average / (1 - 0.9**count)), rtol=1e-9, atol=1e-12)
    newest = (number(opt, "curvature_start") + number(opt, "curvature_size") - 1) % 7
    assert torch.equal(kept(opt, "fisher")[newest], g)


def test_no_momentum_is_no_buffer_and_the_same_bits():
    problem = NoisyValley()
    plain, zero = Vector(problem.w0), Vector(problem.w0)
    a, b = quiet(plain.parameters()), quiet(zero.parameters(), momentum=0.0)
    assert torch.equal(run(a, plain, problem, range(30)), run(b, zero, problem, range(30)))
    assert "momentum" not in b.state[zero.pieces[0]]
    extra = quiet(Vector(problem.w0).parameters(), momentum=0.9).state_size() - b.state_size()
    assert extra == problem.n * 8


@pytest.mark.parametrize("resets", [True, False])
def test_what_a_rejection_does_to_the_averaged_gradient(resets):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = as_printed(
        model.parameters(), lr=0.05, monitor=Script("aar"), cycle_length=2, momentum=0.9,
        reject=RejectOptions(reset_momentum=resets),
    )  # fmt: skip
    run(opt, model, problem, range(6))
    assert opt.stats.rejected == 1
    assert bool(kept(opt, "momentum").any()) != resets
    assert number(opt, "momentum_step") == (0 if resets else 6)
    opt.reset_history()
    assert not kept(opt, "momentum").any()


# ---------------------------------------------------------------------- cycles that adapt


def test_exact_gradients_shorten_cycles_and_skipped_pairs_lengthen_them():
    problem = NoisyValley(noise=0.0)
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length="auto", lr=0.001)
    assert opt.stats.cycle_length == 5
    run(opt, model, problem, range(60))
    assert opt.stats.cycle_length == 2
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=(2, 8), pairs=NO_PAIRS)
    run(opt, model, problem, range(5 + 5 + 6 + 7))
    assert (opt.stats.cycles, opt.stats.cycle_length) == (4, 8)


def test_the_length_is_saved_and_kept_within_the_bounds_of_whoever_loads_it():
    problem = NoisyValley(noise=0.0)
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length="auto", lr=0.001)
    run(opt, model, problem, range(60))
    for shortest, expected in ((1, 2), (4, 4)):
        other = quiet(Vector(problem.w0).parameters(), cycle_length=(shortest, 20))
        other.load_state_dict(copy.deepcopy(opt.state_dict()))
        assert other.stats.cycle_length == expected
    fixed = quiet(Vector(problem.w0).parameters(), cycle_length=7)
    fixed.load_state_dict(opt.state_dict())
    assert fixed.stats.cycle_length == 7


# ---------------------------------------------------------------------- the paired test and rotating sets


def test_a_scalar_monitor_falls_back_to_the_factor_test_without_a_warning():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = as_printed(model.parameters(), cycle_length=1, reject=RejectOptions(test="paired", factor=1.4))
    follow(opt, 1.0, 1.3, 1.9, 1.3, 1.3)
    run(opt, model, problem, range(5))
    assert (opt.stats.stored, opt.stats.rejected) == (3, 1)


def test_differences_decide_and_not_the_spread_of_the_losses():
    problem = NoisyValley()
    model, events = Vector(problem.w0), []
    spread = torch.tensor([1.0, 100.0, 3.0, 50.0], dtype=torch.float64)
    wobble = torch.tensor([25.0, -14.0, 18.0, -9.0], dtype=torch.float64)
    opt = as_printed(model.parameters(), cycle_length=1, reject="paired", on_cycle=events.append)
    # The mean rises by 5, which four such differences cannot tell from nothing; then by 9 of every example, which is
    # 0.6 standard errors of the mean loss (D38).
    follow(opt, spread, spread + wobble, spread + wobble + 9.0)
    run(opt, model, problem, range(3))
    assert [e.outcome for e in events] == [Outcome.STARTED, Outcome.STORED, Outcome.REJECTED]


def per_example(output, target):
    return (output - target).square().mean(1)


def rotating(model):
    generator = torch.Generator().manual_seed(3)
    data = [(torch.randn(6, 3, generator=generator), torch.randn(6, 1, generator=generator)) for _ in range(3)]
    return RotatingMonitor(model, per_example, data)


def train(model, opt, steps):
    for k in steps:
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(k))
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_both_points_are_judged_on_the_same_set_and_the_next_cycle_on_the_next():
    model, seen = net(), []

    class Watched(RotatingMonitor):
        def __call__(self):
            seen.append(self.position % 3)
            return super().__call__()

    monitor = Watched(model, per_example, rotating(model).batches)
    train(model, as_printed(model.parameters(), monitor=monitor, cycle_length=2, reject="paired"), range(8))
    assert seen == [1, 2, 2, 0, 0, 1, 1]


def test_the_turn_of_a_rotating_monitor_is_saved_and_the_run_resumes_bit_for_bit():
    def make(model):
        monitor = rotating(model)
        options = {"cycle_length": 2, "reject": RejectOptions(level=0.3)}
        return AdaQN(model.parameters(), preset="modern", lr=0.3, monitor=monitor, **options)

    for stop in (7, 8, 9):
        model = net()
        opt = make(model)
        train(model, opt, range(stop))
        resumed = copy.deepcopy(model)
        other = make(resumed)
        other.load_state_dict(copy.deepcopy(opt.state_dict()))
        assert other.monitor.position == opt.monitor.position == stop // 2
        train(model, opt, range(stop, stop + 30))
        train(resumed, other, range(stop, stop + 30))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
        assert other.stats == opt.stats
        assert opt.stats.rejected > 0


@pytest.mark.parametrize(
    "batches", [[], (torch.ones(2, 3), torch.ones(2)), torch.ones(2, 3), iter([]), [torch.ones(2)]]
)
def test_batches_that_are_none_are_refused(batches):
    with pytest.raises(ValueError, match="batches"):
        RotatingMonitor(nn.Linear(3, 1), per_example, batches)


# ---------------------------------------------------------------------- D15


def scripted(letters: str, **options):
    problem = NoisyValley()
    model = Vector(problem.w0)
    return as_printed(model.parameters(), lr=0.05, cycle_length=1, monitor=Script(letters), **options), model, problem


def test_rejections_between_stored_pairs_halve_the_steps():
    """D15: accepted, accepted, rejected, and so on: D11 never sees an empty memory twice, the window does."""
    opt, model, problem = scripted("aar")
    run(opt, model, problem, range(30))
    assert (opt.stats.rejected, opt.stats.step_multiplier) == (10, 1.0)
    opt, model, problem = scripted("aar", reject=RejectOptions(window=10))
    run(opt, model, problem, range(30))
    assert opt.stats.rejected == 10
    assert opt.stats.step_multiplier == pytest.approx(0.5**9 * 1.02**16)


def test_rejections_far_apart_are_noise_and_steps_recover():
    opt, model, problem = scripted("ar" + 12 * "a", reject=RejectOptions(window=10))
    run(opt, model, problem, range(70))
    assert (opt.stats.rejected, opt.stats.step_multiplier) == (5, 1.0)
    opt, model, problem = scripted("arr" + 100 * "a", reject=RejectOptions(window=10))
    run(opt, model, problem, range(3))
    assert opt.stats.step_multiplier == 0.5
    run(opt, model, problem, range(3, 50))
    assert opt.stats.step_multiplier == 1.0


def test_the_first_cycle_is_judged_too():
    """D15: otherwise a first cycle of far too large steps would become the anchor."""
    for window, expected in ((0, Outcome.STARTED), (10, Outcome.REJECTED)):
        events, problem = [], NoisyValley()
        model = Vector(problem.w0)
        opt = as_printed(
            model.parameters(), lr=50.0, monitor=lambda m=model, p=problem: p.loss(m.vector()), cycle_length=2,
            reject=RejectOptions(window=window), on_cycle=events.append,
        )  # fmt: skip
        run(opt, model, problem, range(2))
        assert events[0].outcome is expected


def test_weights_that_blow_up_count_as_rejected():
    """D15 and D13: without a monitor as well."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=3, reject=RejectOptions(test="none", window=5))
    run(opt, model, problem, range(4))
    for last, multiplier in ((6, 1.0), (9, 0.5)):  # cycles end there, and with them it shows
        with torch.no_grad():
            model.pieces[1][0] = math.inf
        while opt.stats.cycles < last // 3:
            model.set_gradient(torch.full((problem.n,), math.nan))
            opt.step()
        assert opt.stats.step_multiplier == multiplier
        assert model.vector().isfinite().all()


def test_a_run_with_rejections_resumes_bit_for_bit():
    problem = NoisyValley(seed=1)
    for stop in (9, 20, 23):
        opt, model = modern(problem, lr=3.0, cycle_length="auto")
        run(opt, model, problem, range(stop))
        other, resumed = modern(problem, lr=3.0, cycle_length="auto")
        resumed.load_state_dict(model.state_dict())
        other.load_state_dict(copy.deepcopy(opt.state_dict()))
        expected = run(opt, model, problem, range(stop, stop + 40))
        assert torch.equal(run(other, resumed, problem, range(stop, stop + 40)), expected)
        assert other.stats == opt.stats
        assert opt.stats.step_multiplier < 1.0


@pytest.mark.parametrize("cycle_length", [5, "auto"])
@pytest.mark.parametrize("lr", [0.03, 0.3, 3.0, 30.0])
def test_step_sizes_over_three_decades_stay_sane(lr, cycle_length):
    problem = NoisyValley(seed=1)
    opt, model = modern(problem, lr=lr, cycle_length=cycle_length)
    run(opt, model, problem, range(300))
    assert problem.loss(problem.w0) > 11.0
    with opt.averaged():
        assert problem.loss(model.vector()) < 3.0


@pytest.mark.parametrize("lr", [3e-4, 3e-3, 3e-2, 3e-1])
def test_step_sizes_over_three_decades_stay_sane_on_a_recurrent_net(lr):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 6, 1, generator=generator)
    target = 0.5 * x.sum(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.output = nn.RNN(1, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.output(self.cells(x)[0][:, -1])

    torch.manual_seed(0)
    model = Net()
    monitor = Monitor(model, per_example, (x[:128], target[:128]))
    opt, start = AdaQN(model.parameters(), lr=lr, preset="modern", monitor=monitor), float(monitor().mean())
    for _ in range(120):
        rows = torch.randint(256, (32,), generator=generator)
        opt.zero_grad()
        per_example(model(x[rows]), target[rows]).mean().backward()
        opt.step()
    with opt.averaged():
        assert float(monitor().mean()) < start


# ---------------------------------------------------------------------- presets, the average, older states


def test_without_a_preset_it_is_the_default_one():
    problem = NoisyValley()
    paths = []
    for options in ({}, {"preset": "default"}, {"preset": "kronecker"}, {"preset": "paper"}):
        model = Vector(problem.w0)
        opt = AdaQN(model.parameters(), monitor=lambda m=model: problem.loss(m.vector()), **options)
        paths.append(run(opt, model, problem, range(40)))
    assert torch.equal(paths[0], paths[1])
    assert torch.equal(paths[0], paths[2])
    assert not torch.equal(paths[0], paths[3])


def test_the_papers_preset_is_what_the_paper_says():
    opt = AdaQN([nn.Parameter(torch.ones(2))], preset="paper")
    paper = PRESETS["paper"]
    assert (opt.defaults["lr"], opt.defaults["momentum"], opt.stats.cycle_length) == (1e-2, 0.0, 5)
    assert (paper.scaling, paper.pairs.memory_size, paper.pairs.fisher_size) == ("adagrad", 10, 100)
    assert (paper.pairs.test, paper.pairs.eps, paper.pairs.damping) == ("absolute", 1e-4, 0.0)
    assert (paper.reject.test, paper.reject.factor, paper.reject.window, paper.reject.patience) == (
        "factor",
        1.01,
        0,
        3,
    )


def numbers(preset, prefix=""):
    """Its values by name; those of its pairs and rejections as ``pairs.eps``."""
    values = {f"{prefix}{field.name}": getattr(preset, field.name) for field in fields(preset)}
    inner = {name: values.pop(name) for name in list(values) if is_dataclass(values[name])}
    return values | {key: value for name, part in inner.items() for key, value in numbers(part, f"{name}.").items()}


def test_every_preset_is_listed_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "presets.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    rows = [row for row in rows if len(row) == 4]
    table = {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows}
    names = [name for name in PRESETS if name != "default"]
    assert set(rows[0][1:]) == set(names)
    for name in names:
        for option, value in numbers(PRESETS[name]).items():
            assert table[option][name] == str(value), option
    default = next(name for name in names if PRESETS[name] == PRESETS["default"])
    assert f'`preset="default"`, which is `"{default}"`' in page


@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_average_of_the_last_accepted_cycle_takes_one_vector(preset):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = AdaQN(model.parameters(), preset=preset, reject="none", averaging=0.0)
    run(opt, model, problem, range(5))
    size = opt.state_size()
    with opt.averaged():
        pass
    assert opt.state_size() == size + 8 * problem.n
    path = run(opt, model, problem, range(5, 12))
    with opt.averaged():
        torch.testing.assert_close(model.vector(), path[:5].mean(0), rtol=1e-12, atol=1e-14)
    assert torch.equal(model.vector(), path[-1])


def of_format_1(opt):
    saved = copy.deepcopy(opt.state_dict())
    for group in saved["param_groups"]:
        del group["momentum"]
    for entry in saved["state"].values():
        entry["format"] = 1
        for name in ("rejected_at", "cycle_length", "monitor_position"):
            del entry[name]
    return saved


def test_a_state_of_the_first_format_loads_and_goes_on_bit_for_bit():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem)
    resumed = Vector(model.vector())
    other = quiet(resumed.parameters(), cycle_length=3, pairs=SMALL)
    other.load_state_dict(of_format_1(opt))
    assert other.stats == opt.stats
    expected = run(opt, model, problem, range(23, 40))
    assert torch.equal(run(other, resumed, problem, range(23, 40)), expected)


def test_a_state_without_momentum_is_refused_by_name():
    problem = NoisyValley()
    model = Vector(problem.w0)
    saved = of_format_1(with_history(model, problem))
    other = quiet(model.parameters(), cycle_length=3, pairs=SMALL, momentum=0.9)
    with pytest.raises(ValueError, match=r"missing \['momentum', 'momentum_step'\].*options it was saved with"):
        other.load_state_dict(saved)
    assert other.stats.steps == 0
    assert other.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize("theirs, ours", [(0.0, 0.9), (0.9, 0.0)])
def test_the_momentum_of_a_saved_group_is_taken_over_with_its_state(theirs, ours):
    """As in torch's optimizers, whatever the one that loads it was made with, and has done."""
    problem = NoisyValley()
    model, other_model = Vector(problem.w0), Vector(problem.w0)
    opt, other = (with_history(m, problem, momentum=beta) for m, beta in ((model, theirs), (other_model, ours)))
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert other.param_groups[0]["momentum"] == theirs
    assert ("momentum" in other.state[other_model.pieces[0]]) == (theirs > 0)
    assert other.state_size() == opt.state_size()
    expected = run(opt, model, problem, range(23, 40))
    assert torch.equal(run(other, other_model, problem, range(23, 40)), expected)
