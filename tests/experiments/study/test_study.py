"""The study: the search for step sizes, files that grow run by run, and the command with its page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline import inline_workers
from laboratory import unsealed
from typer.testing import CliRunner

from adaqn.experiments.commands.app import app
from adaqn.experiments.comparison.summary import first_reached
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.search.points import USUAL, Point, best_rung, due_rungs, step_size
from adaqn.experiments.study import anytime, profile
from adaqn.experiments.study.driver import StudyWork, all_times
from adaqn.experiments.study.page import BEGIN, END, body
from adaqn.experiments.study.plan import chosen, whole_study
from adaqn.experiments.study.regimes import Regime, variants
from adaqn.experiments.study.rows import AVERAGES, TRACES, Row
from adaqn.experiments.study.summary import Line, lines
from adaqn.experiments.training import parallel
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.opening import run_one

SMALL: dict[str, Any] = {
    "seeds": 2,
    "points": 2,
    "regimes": {
        "constant": {"warm_up": 0.25, "averaging": 8},
        "cosine": {"warm_up": 0.25, "schedule": "cosine"},
    },
    "chosen_on": ["sum"],
    "first": ["adaqn", "adamw"],
    "timed": ["adaqn", "sgd"],
    "core_methods": ["schedule-free", "adamw", "adaqn"],
    "further_methods": ["adaqn", "adamw"],
    "core": {
        "tiny": {
            "title": "digits", "task": "mlp", "data": "embedded", "hidden": 4, "layers": 1, "limit": 128, "steps": 12,
            "evaluations": 1,
        }
    },
    "further": {
        "sum": {
            "title": "sums", "task": "addition", "hidden": 4, "length": 4, "limit": 128, "steps": 8, "evaluations": 1,
        }
    },
    "anytime": {"cells": ["sum"], "methods": ["adamw"], "shares": [0.5]},
}  # fmt: skip

CONSTANT = Regime("constant", 0.25, 8)
COSINE = Regime("cosine", 0.25, None, "cosine")
(ADAMW,) = variants(("adamw",), (CONSTANT,), 12)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "cells.json"
    path.write_text(json.dumps(SMALL))
    return path


def adaqn(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["study", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def losses_by(function: Any, budget: int) -> dict[int, float]:
    known: dict[int, float] = {}
    while rungs := due_rungs(known, budget):
        assert not set(rungs) & set(known), "a step size was tried twice"
        known |= {rung: function(rung) for rung in rungs}
    return known


@given(st.integers(-40, 40), st.integers(1, 12))
def test_every_method_gets_the_same_number_of_step_sizes(lowest: int, budget: int) -> None:
    known = losses_by(lambda rung: abs(rung - lowest), budget)
    assert len(known) == budget
    assert 0 in known, "the default step size is always among them"


@given(st.integers(-4, 4))
def test_five_step_sizes_find_a_minimum_within_a_decade_of_the_default(lowest: int) -> None:
    known = losses_by(lambda rung: abs(rung - lowest), 5)
    assert abs(best_rung(known) - lowest) <= 1


@given(st.lists(st.sampled_from([1.0, 2.0, math.nan, math.inf]), min_size=12, max_size=12))
def test_losses_that_are_not_finite_never_win_and_never_stop_the_search(values: list[float]) -> None:
    found = iter(values)
    known = losses_by(lambda _: next(found), 8)
    assert len(known) == 8
    if any(math.isfinite(loss) for loss in known.values()):
        assert math.isfinite(known[best_rung(known)])


def test_the_file_fixes_the_cells_that_were_promised() -> None:
    plan = whole_study()
    rivals = {"adam", "adamw", "soap", "soap-5", "schedule-free", "prodigy", "muon", "shampoo", "adagrad", "rmsprop"}
    everything = {*rivals, "nag", "adaqn", "adaqn-paper"}
    methods = {panel.name: {variant.optimizer for variant in panel.variants} for panel in plan.panels}
    assert len(plan.panels) == 19
    newest = {"adaqn", "soap", "adamw", "soap-5", "schedule-free", "prodigy", "muon"}
    for who, tasks, used in ((everything, 4, 1), (newest, 3, 3), ({"adaqn", "soap", "adamw"}, 12, 4)):
        theirs = {name for name, found in methods.items() if found == who}
        assert (len(theirs), len(theirs & set(plan.chosen_on))) == (tasks, used)
    assert all(panel.base.steps for panel in plan.panels), "steps are fixed, not epochs"
    by_name = {panel.name: panel.base for panel in plan.panels}
    for short in ("dickens-tanh", "nietzsche-lstm"):
        assert by_name[f"{short}-long"].steps == 4 * (by_name[short].steps or 0)
    for new in ("char-transformer", "mnist-conv", "nietzsche-transformer", "digits-conv"):
        assert (by_name[new].weight_decay, by_name[new].clip) == (0.1, 1.0)
    assert 0 < len(plan.chosen_on) <= len(plan.panels) // 2, "most cells are only looked at when presets are chosen"
    assert plan.seeds == 3
    assert {(panel.search, panel.budget) for panel in plan.panels} == {("ladder", 5)}
    assert [(panel.name, panel.base.steps) for panel in plan.shorter] == [
        ("dickens-tanh-long-630", 630), ("dickens-tanh-long-1260", 1260),
        ("nietzsche-lstm-long-630", 630), ("nietzsche-lstm-long-1260", 1260),
    ]  # fmt: skip
    assert not chosen(plan, [plan.shorter[0].name], []).is_whole, "shorter runs alone are of this study too"


def test_what_presets_are_chosen_by_is_run_first_and_nothing_twice_or_never() -> None:
    plan = whole_study()
    ordered = plan.in_order().panels
    steps = [(panel.name, {variant.optimizer for variant in panel.variants}) for panel in ordered]
    first, count = {"adaqn", "soap", "adamw"}, len(plan.chosen_on)
    assert {name for name, _ in steps[:count]} == set(plan.chosen_on)
    assert all(methods == first for _, methods in steps[: len(plan.panels)])
    assert not any(methods & first for _, methods in steps[len(plan.panels) + len(plan.shorter) :])
    run = [(panel.name, variant) for panel in ordered for variant in panel.variants]
    asked = [(panel.name, variant) for panel in (*plan.panels, *plan.shorter) for variant in panel.variants]
    assert len(run) == len(set(run))
    assert set(run) == set(asked)


def test_a_method_with_an_average_or_a_warm_up_of_its_own_uses_that(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {variant.name: variant for variant in variants(("adam", "adaqn", "schedule-free"), (CONSTANT, COSINE), 100)}
    assert set(found) == {"adam.constant", "adam.cosine", "adaqn.constant", "adaqn.cosine", "schedule-free.constant"}
    base = RunConfig(steps=100)
    adam = found["adam.constant"].on(base)
    assert (adam.warm_up, adam.averaging, adam.schedule) == (25, 8, "constant")
    cosine = found["adam.cosine"].on(base)
    assert (cosine.warm_up, cosine.averaging, cosine.schedule) == (25, None, "cosine")
    assert found["adaqn.constant"].on(base).averaging is None
    assert found["schedule-free.constant"].on(base).averaging is None
    warm = {"warm_up": 10, "averaging": 8.0}
    monkeypatch.setattr("adaqn.experiments.study.regimes.usual_options", lambda *_: warm)
    assert variants(("adaqn",), (CONSTANT,), 100)[0].on(base).warm_up == 0


def test_the_whole_of_a_study(small: Path, tmp_path: Path) -> None:
    results, out, page = tmp_path / "results", tmp_path / "out", tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    planned = adaqn("--tasks", small, "--results", results, "--plan")
    assert re.search(r"[0-9.]+ hours, one run at a time", planned)
    assert not results.exists(), "--plan runs nothing"

    places = ("--tasks", small, "--results", results, "--out", out, "--workers", "1")
    adaqn(*places)
    plan = whole_study(small)
    for panel in (*plan.panels, *plan.shorter):
        for variant in panel.variants:
            row = Row(panel, variant, results)
            assert not row.due(plan.seeds)
            assert len(row.tried()) == panel.budget
            judged = (
                "averaged_valid_loss" if row.regime == "constant" and row.method != "schedule-free" else "valid_loss"
            )
            best = row.find(row.best_lr() or 0.0, 0)
            assert best is not None
            assert best["end"][judged] == min(row.tried().values())
            ran_untuned = row.regime == "constant" and row.method != "schedule-free"
            assert row.untuned == ran_untuned
            assert not ran_untuned or len(row.at(row.default, plan.seeds)) == plan.seeds
    made = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    assert "missing" not in adaqn(*places)
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")} == made, "nothing is run again"

    adaqn("--tasks", small, "--results", results, "--time")
    page.write_text("# Results\n\nbefore\n\n<!-- tables: begin -->\nold\n<!-- tables: end -->\n\nafter\n")
    adaqn("--tasks", small, "--results", results, "--page", page)
    text = page.read_text()
    assert "old" not in text
    order = (
        "before",
        "### All tasks",
        "### Milliseconds per step",
        "### How often",
        "### At any time",
        "### digits",
        "### sums",
        "after",
    )
    assert sorted(order, key=text.index) == list(order)
    assert "sums °" in text
    assert "digits °" not in text
    assert all("sgd" in known for known in all_times(plan, results).values()), "timed though it was not run"
    assert re.search(r"\| task \| \w+ \| SGD \| \w+ / SGD \|", text)
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert pictures == [f"results/{name}.svg" for name in ("profile", "anytime", "tiny", "sum")]
    for picture in pictures:
        path = page.parent / picture
        for drawn in (path, path.with_suffix(".png"), path.with_name(f"{path.stem}-phone.svg")):
            assert drawn.stat().st_size > 1000
    found = lines(plan, results)
    for methods in found.values():
        for regimes in methods:
            assert [sum(line.valid) for line in regimes] == sorted(sum(line.valid) for line in regimes)
        adamw = next(regimes[0] for regimes in methods if regimes[0].method == "adamw")
        assert adamw.goal == adamw.mean
        assert adamw.steps_to_goal is not None
        assert adamw.steps_to_goal <= adamw.steps
        assert adamw.seconds_to_goal == pytest.approx(adamw.steps_to_goal * (adamw.milliseconds or 0.0) / 1e3)


def test_a_row_goes_on_where_another_machine_stopped(small: Path, tmp_path: Path) -> None:
    """Only the small files travel: the runs they know are not made again."""
    results = tmp_path / "results"
    one = ("--tasks", small, "--results", results, "--task", "sum", "--method", "adamw")
    adaqn(*one, "--out", tmp_path / "one", "--workers", "1")
    path = results / "sum" / "adamw.cosine.json"
    gone = json.loads(path.read_text())["runs"][-1]
    unsealed(path, lambda said: said["runs"].pop())
    adaqn(*one, "--out", tmp_path / "two", "--workers", "1")
    made = list((tmp_path / "two" / "runs").iterdir())
    assert len(made) == 1
    again = json.loads(path.read_text())["runs"]
    same = next(run for run in again if (run["lr"], run["seed"]) == (gone["lr"], gone["seed"]))
    assert same["trace"]["test_loss"] == gone["trace"]["test_loss"]


def test_results_of_other_settings_are_named_and_left_alone(small: Path, tmp_path: Path) -> None:
    panel = whole_study(small).panels[0]
    path = tmp_path / "tiny" / "adamw.constant.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**Row(panel, ADAMW, tmp_path).settings(), "default_lr": 1.0, "runs": []}))
    with pytest.raises(UserError, match=r"default_lr.*delete"):
        Row(panel, ADAMW, tmp_path)
    path.write_text("[]")
    with pytest.raises(UserError, match="left in place"):
        Row(panel, ADAMW, tmp_path)
    assert path.read_text() == "[]"


def test_what_is_not_there_is_named(small: Path) -> None:
    with pytest.raises(UserError, match=r"there is no task 'huge'.*tiny"):
        chosen(whole_study(small), ["huge"], [])
    with pytest.raises(UserError, match="no optimizer called 'adma'"):
        chosen(whole_study(small), [], ["adma"])
    with pytest.raises(UserError, match=r"there is no regime 'linear'.*constant, cosine"):
        chosen(whole_study(small), [], [], ["linear"])
    small.write_text("{}")
    with pytest.raises(UserError, match="not a file of tasks"):
        whole_study(small)


def test_steps_to_a_loss_lie_on_the_line_between_two_evaluations() -> None:
    assert first_reached([(0, math.inf), (10, 1.0)], 2.0) == 10.0
    assert first_reached([(0, 3.0), (10, 1.0)], 2.0) == 5.0
    assert first_reached([(0, 3.0), (10, 2.5)], 2.0) is None


def test_step_sizes_are_three_digits() -> None:
    assert [step_size(3e-3, rung) for rung in (-1, 0, 1)] == [0.00169, 0.003, 0.00533]


def test_a_part_of_the_study_does_not_replace_the_page_or_the_times(small: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for words in (
        ("--page", page, "--task", "tiny"),
        ("--page", page, "--method", "adamw"),
        ("--time", "--method", "adamw"),
        ("--page", page, "--regime", "cosine"),
        ("--time", "--regime", "cosine"),
    ):
        with pytest.raises(UserError, match="leave out"):
            adaqn("--tasks", small, "--results", tmp_path / "results", *words)
    page.write_text("# Results\n\n<!-- tables: begin -->\nold\n")
    for path, said in ((page, "left in place"), (tmp_path, "a folder, where a file should be")):
        with pytest.raises(UserError, match=said):
            adaqn("--tasks", small, "--results", tmp_path / "results", "--page", path)
    assert page.read_text().endswith("old\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": 2.7}, "whole numbers"),
        ({"core_methods": "adam"}, "list of names"),
        ({"regimes": {}}, "tiny needs regimes"),
        ({"regimes": {"constant": {"warm_up": 2}}}, "constant.warm_up is 2, not from 0 to 1"),
        ({"regimes": {"constant": {"warm_up": 0, "schedule": "linear"}}}, "schedule of constant must be one of"),
        ({"regimes": {"constant": {"warm_up": 0, "averages": 8}}}, "averages"),
        ({"chosen_on": ["huge"]}, "chosen_on names 'huge', which is not a task"),
        ({"anytime": {"cells": ["huge"], "methods": [], "shares": []}}, "anytime names 'huge'"),
        ({"anytime": {"cells": ["sum"], "methods": ["adamw"], "shares": [2]}}, "between 0 and 1, got 2"),
    ],
)
def test_a_wrong_file_of_tasks_is_told(small: Path, change: dict[str, Any], said: str) -> None:
    small.write_text(json.dumps({**SMALL, **change}))
    with pytest.raises(UserError, match=said):
        whole_study(small)


def test_the_options_go_by_their_old_names_too(small: Path, tmp_path: Path) -> None:
    places = ("--results", tmp_path / "results", "--plan", "--method", "adamw")
    new = adaqn("--tasks", small, "--task", "sum", *places)
    assert adaqn("--cells", small, "--cell", "sum", *places).count("sum") == new.count("sum") > 0
    assert "--cell" not in adaqn("--help")


def test_a_method_that_no_task_has_needs_a_task(small: Path) -> None:
    with pytest.raises(UserError, match="--task"):
        chosen(whole_study(small), [], ["kfac"])
    (panel,) = chosen(whole_study(small), ["sum"], ["kfac"]).panels
    assert [variant.name for variant in panel.variants] == ["kfac.constant", "kfac.cosine"]
    plan = chosen(whole_study(small), ["sum-4"], ["adamw"])
    assert not plan.panels
    assert [panel.name for panel in plan.shorter] == ["sum-4"]


def test_one_regime_alone(small: Path) -> None:
    plan = chosen(whole_study(small), ["sum"], ["adamw", "soap"], ["cosine"])
    assert [variant.name for panel in plan.panels for variant in panel.variants] == ["adamw.cosine", "soap.cosine"]


def test_a_run_that_is_not_whole_is_told(small: Path, tmp_path: Path) -> None:
    panel = whole_study(small).panels[0]
    row = Row(panel, ADAMW, tmp_path)
    whole = {
        "lr": 0.001, "seed": 0, "unit": "nats", "seconds": 1.0,
        "end": {"valid_loss": 1.0, "test_loss": 1.0, "averaged_valid_loss": 0.5, "averaged_test_loss": 0.5},
        "trace": {name: [1] for name in (*TRACES, *AVERAGES)},
    }  # fmt: skip
    row.path.parent.mkdir()
    not_averaged = {**whole, "trace": {name: [1] for name in TRACES}}
    cut = {**whole, "trace": {**whole["trace"], "step": []}}
    for broken in ({**whole, "end": {}}, cut, not_averaged, {"lr": 0.001}, 3):
        row.path.write_text(json.dumps({**row.settings(), "runs": [broken]}))
        with pytest.raises(UserError, match=r"adamw\.constant\.json is damaged"):
            Row(panel, ADAMW, tmp_path)
    row.path.write_text(json.dumps({**row.settings(), "runs": [whole]}))
    assert Row(panel, ADAMW, tmp_path).tried() == {Point(0.001, USUAL.get("adamw", 0)): 0.5}


def test_the_page_in_the_documentation_is_what_the_committed_results_say() -> None:
    root = Path(__file__).parents[3]
    text = (root / "docs" / "results.md").read_text(encoding="utf-8")
    plan, results = whole_study(), root / "experiments" / "study"
    found = lines(plan, results)
    parts = body(found, anytime.cells(plan, found, results), all_times(plan, results), plan)
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == "\n\n".join(parts)


def test_the_committed_results_are_of_cells_and_methods_that_there_are() -> None:
    plan, results = whole_study(), Path(__file__).parents[3] / "experiments" / "study"
    known = {(panel.name, f"{v.name}.json") for panel in (*plan.panels, *plan.shorter) for v in panel.variants}
    known |= {(panel.name, "timing.json") for panel in plan.panels}
    assert {(path.parent.name, path.name) for path in results.glob("*/*.json")} <= known


def test_results_of_the_paired_test_by_its_former_name_are_read(small: Path, tmp_path: Path) -> None:
    panel, (modern,) = whole_study(small).panels[0], variants(("adaqn-modern",), (CONSTANT,), 12)
    row = Row(panel, modern, tmp_path)
    said = row.settings()
    assert said["options"]["acceptance"] == "paired"
    row.path.parent.mkdir()
    row.path.write_text(json.dumps({**said, "options": {**said["options"], "acceptance": "auto"}, "runs": []}))
    assert Row(panel, modern, tmp_path).runs == []


def test_a_study_within_a_budget_says_what_is_missing_and_goes_on(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "started_workers", inline_workers)
    places = ("--tasks", small, "--results", tmp_path / "results", "--out", tmp_path / "out")
    nothing = adaqn(*places, "--budget-hours", "0")
    assert "missing: tiny, adamw.constant: 0 of 2 step sizes, 0 of 2 seeds" in nothing
    assert "the budget is spent" in nothing
    assert not list((tmp_path / "out").glob("runs/*"))
    assert "missing" not in adaqn(*places, "--budget-hours", "1")


def test_what_comes_first_is_finished_first(small: Path, tmp_path: Path) -> None:
    """A run that ended first does not change which step sizes are tried: a round counts when all of it is there."""
    plan = whole_study(small).in_order()
    work = StudyWork(plan, tmp_path / "results", tmp_path / "runs", None)
    first = work.due()
    assert {job.config.seed for job in first} == {0}
    assert first[0].cell == "sum"
    for job in (job for job in first if job.group == first[0].group):
        assert [other.folder for other in work.due() if other.folder == job.folder]
        run_one(job.config, job.folder)
    second = work.due()
    assert (second[0].cell, second[0].config.seed) == ("sum", 1), "the other seeds come before other cells"
    assert {job.cell for job in second} > {"sum"}


def test_a_default_is_run_with_all_seeds_before_any_search(tmp_path: Path) -> None:
    """Then the first methods, which it is measured by; its own search comes with the rest."""
    path = tmp_path / "cells.json"
    path.write_text(json.dumps({**SMALL, "as_it_comes": ["adaqn"]}), encoding="utf-8")
    work = StudyWork(whole_study(path).in_order(), tmp_path / "results", tmp_path / "runs", None)

    def stages() -> list[tuple[int, str]]:
        return [(job.group[0], job.config.optimizer) for job in work.due()]

    default = [job for job in work.due() if job.group[0] == 0]
    assert {(job.cell, job.config.seed) for job in default} == {("sum", 0), ("sum", 1), ("tiny", 0), ("tiny", 1)}
    assert {(job.config.optimizer, job.config.lr) for job in default} == {("adaqn", entry("adaqn").lr)}
    assert {optimizer for stage, optimizer in stages() if stage == 1} == {"adamw"}
    assert {optimizer for stage, optimizer in stages() if stage == 2} == {"adaqn", "schedule-free"}, "with a schedule"
    for job in default:
        run_one(job.config, job.folder)
    assert min(stages())[0] == 1
    assert {optimizer for stage, optimizer in stages() if stage == 2} == {"adaqn", "schedule-free"}


def line(method: str, trace: list[float], milliseconds: float | None, goal: float, untuned: list[float]) -> Line:
    """A method whose loss falls from step 0 to step 100, as given at equal distances."""
    steps = [round(100 * i / (len(trace) - 1)) for i in range(len(trace))]
    runs = [{"trace": {"step": steps, "test_loss": trace}}]
    late = [{"trace": {"step": steps, "test_loss": untuned}}] if untuned else []
    panel = whole_study().panels[0]
    return Line(
        panel, method, "constant", method, "", panel.base, runs, 0.1, False, 1, trace[-1:], trace[-1:], [],
        untuned[-1:], late, milliseconds, 100, "nats", None, goal,
    )  # fmt: skip


def test_the_profile_counts_cells_within_so_many_times_the_fastest() -> None:
    """Seconds to the goal: cell a 5 and 10, and 2.5 untuned; cell b 10 and never."""
    found = {
        "a": [[line("adaqn", [3, 1], 100, 2, [4, 0])], [line("adamw", [3, 2], 100, 2, [])]],
        "b": [[line("adamw", [3, 2], 100, 2, [])], [line("adaqn", [3, 2.5], 100, 2, [3, 2.5])]],
        "not timed": [[line("adamw", [3, 2], None, 2, [])], [line("adaqn", [3, 1], None, 2, [])]],
    }
    curves = {p.label: p for p in profile.profiles(found, ["adamw", "adaqn"])}
    assert curves["adaqn"].ratios == [1.0, math.inf]
    assert curves["adaqn, untuned"].ratios == [1.0, math.inf]
    assert curves["adamw"].ratios == [2.0, 1.0]
    assert [curves["adamw"].share(tau) for tau in (1.0, 1.99, 2.0)] == [0.5, 0.5, 1.0]
    assert [title for title, _ in profile.views(found)] == ["2 tasks"]
    assert profile.views({"not timed": found["not timed"]}) == []


def test_the_profile_shows_more_methods_on_the_tasks_that_have_them() -> None:
    order = ["adamw", "adaqn", "soap", "muon"]
    found = {str(n): [[line(method, [3, 1], 100, 2, [])] for method in order[:n]] for n in (2, 3, 4)}
    shown = {title: {curve.method for curve in curves} for title, curves in profile.views(found)}
    assert shown == {"3 tasks": {*order[:2]}, "2 tasks": {*order[:3]}, "one task": {*order}}
