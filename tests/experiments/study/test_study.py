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
from laboratory import unsealed
from typer.testing import CliRunner

from adaqn.experiments.commands.app import app
from adaqn.experiments.comparison.panels import as_it_comes
from adaqn.experiments.comparison.summary import first_reached
from adaqn.experiments.errors import UserError
from adaqn.experiments.search.points import USUAL, Point, best_rung, due_rungs, step_size
from adaqn.experiments.study.page import overview, section
from adaqn.experiments.study.plan import chosen, whole_study
from adaqn.experiments.study.rows import TRACES, Row
from adaqn.experiments.study.summary import lines

SMALL: dict[str, Any] = {
    "seeds": 2,
    "points": 3,
    "average": 0.9,
    "core_methods": ["adam", "adaqn-modern"],
    "further_methods": ["adam"],
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
}  # fmt: skip

ADAM = as_it_comes("adam")


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
    rivals = {"adamw", "adagrad", "rmsprop", "nag", "muon", "shampoo"}
    core = [panel for panel in plan.panels if rivals <= {variant.optimizer for variant in panel.variants}]
    assert [panel.base.task for panel in core].count("char-lm") == 5
    assert len(core) == 7
    assert all(panel.base.steps for panel in plan.panels), "steps are fixed, not epochs"
    assert len(plan.panels) == 12
    assert plan.seeds == 3
    assert {(panel.search, panel.budget) for panel in plan.panels} == {("ladder", 5)}


def test_the_whole_of_a_study(small: Path, tmp_path: Path) -> None:
    results, out, page = tmp_path / "results", tmp_path / "out", tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    planned = adaqn("--cells", small, "--results", results, "--plan")
    assert re.search(r"[0-9.]+ hours of one run at a time", planned)
    assert not results.exists(), "--plan runs nothing"

    places = ("--cells", small, "--results", results, "--out", out, "--workers", "2")
    adaqn(*places)
    plan = whole_study(small)
    for panel in plan.panels:
        for variant in panel.variants:
            row = Row(panel, variant, results)
            assert not row.due(plan.seeds)
            assert len(row.tried()) == panel.budget
            best = min(row.tried().values())
            assert row.find(row.best_lr() or 0.0, 0)["end"]["valid_loss"] == best  # type: ignore[index]
            assert "average_test_loss" in row.runs[0]["end"]
    assert "hours" in adaqn(*places)  # nothing is left, nothing is run again

    adaqn("--cells", small, "--results", results, "--time")
    page.write_text("# Results\n\nbefore\n\n<!-- tables: begin -->\nold\n<!-- tables: end -->\n\nafter\n")
    adaqn("--cells", small, "--results", results, "--page", page)
    text = page.read_text()
    assert "old" not in text
    assert text.index("before") < text.index("### digits") < text.index("### sums") < text.index("after")
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (page.parent / picture).stat().st_size > 1000
    found = lines(plan, results)
    adam = next(line for line in found["tiny"] if line.method == "adam")
    assert adam.seconds_to_adam is not None
    assert adam.steps_to_adam is not None
    assert adam.steps_to_adam <= adam.steps


def test_a_row_goes_on_where_another_machine_stopped(small: Path, tmp_path: Path) -> None:
    """Only the small files travel: the runs they know are not made again."""
    results = tmp_path / "results"
    cell = ("--cells", small, "--results", results, "--cell", "sum")
    adaqn(*cell, "--out", tmp_path / "one", "--workers", "1")
    path = results / "sum" / "adam.json"
    gone = json.loads(path.read_text())["runs"][-1]
    unsealed(path, lambda said: said["runs"].pop())
    adaqn(*cell, "--out", tmp_path / "two", "--workers", "1")
    made = list((tmp_path / "two" / "runs").iterdir())
    assert len(made) == 1
    again = json.loads(path.read_text())["runs"]
    same = next(run for run in again if (run["lr"], run["seed"]) == (gone["lr"], gone["seed"]))
    assert same["trace"]["test_loss"] == gone["trace"]["test_loss"]


def test_results_of_other_settings_are_named_and_left_alone(small: Path, tmp_path: Path) -> None:
    panel = whole_study(small).panels[0]
    path = tmp_path / "tiny" / "adam.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**Row(panel, ADAM, tmp_path).settings(), "default_lr": 1.0, "runs": []}))
    with pytest.raises(UserError, match=r"default_lr.*delete"):
        Row(panel, ADAM, tmp_path)
    path.write_text("[]")
    with pytest.raises(UserError, match="left in place"):
        Row(panel, ADAM, tmp_path)
    assert path.read_text() == "[]"


def test_what_is_not_there_is_named(small: Path) -> None:
    with pytest.raises(UserError, match=r"no cell called 'huge'.*tiny"):
        chosen(whole_study(small), ["huge"], [])
    with pytest.raises(UserError, match="no optimizer called 'adma'"):
        chosen(whole_study(small), [], ["adma"])
    small.write_text("{}")
    with pytest.raises(UserError, match="no file of cells"):
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
        ("--page", page, "--cell", "tiny"),
        ("--page", page, "--method", "adam"),
        ("--time", "--method", "adam"),
    ):
        with pytest.raises(UserError, match="leave out"):
            adaqn("--cells", small, "--results", tmp_path / "results", *words)
    page.write_text("# Results\n\n<!-- tables: begin -->\nold\n")
    for path, said in ((page, "left in place"), (tmp_path, "a folder, where a file should be")):
        with pytest.raises(UserError, match=said):
            adaqn("--cells", small, "--results", tmp_path / "results", "--page", path)
    assert page.read_text().endswith("old\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": 2.7}, "whole numbers"),
        ({"core_methods": "adam"}, "list of names"),
        ({"average": None}, "average"),
    ],
)
def test_a_wrong_file_of_cells_is_told(small: Path, change: dict[str, Any], said: str) -> None:
    small.write_text(json.dumps({**SMALL, **change}))
    with pytest.raises(UserError, match=said):
        whole_study(small)


def test_a_method_that_no_cell_has_needs_a_cell(small: Path) -> None:
    with pytest.raises(UserError, match="--cell"):
        chosen(whole_study(small), [], ["kfac"])
    assert chosen(whole_study(small), ["sum"], ["kfac"]).panels[0].variants == (as_it_comes("kfac"),)


def test_a_run_that_is_not_whole_is_told(small: Path, tmp_path: Path) -> None:
    panel = whole_study(small).panels[0]
    row = Row(panel, ADAM, tmp_path)
    whole = {
        "lr": 0.001, "seed": 0, "unit": "nats", "seconds": 1.0, "end": {"valid_loss": 1.0, "test_loss": 1.0},
        "trace": {name: [1] for name in TRACES},
    }  # fmt: skip
    row.path.parent.mkdir()
    for broken in ({**whole, "end": {}}, {**whole, "trace": {**whole["trace"], "step": []}}, {"lr": 0.001}, 3):
        row.path.write_text(json.dumps({**row.settings(), "runs": [broken]}))
        with pytest.raises(UserError, match=r"adam\.json is damaged"):
            Row(panel, ADAM, tmp_path)
    row.path.write_text(json.dumps({**row.settings(), "runs": [whole]}))
    assert Row(panel, ADAM, tmp_path).tried() == {Point(0.001, USUAL["adam"]): 1.0}


def test_the_page_in_the_documentation_is_what_the_committed_results_say() -> None:
    root = Path(__file__).parents[3]
    text = (root / "docs" / "results.md").read_text(encoding="utf-8")
    found = lines(whole_study(), root / "experiments" / "study")
    assert len(found) == 12
    for of_cell in found.values():
        picture = Path("results") / f"{of_cell[0].panel.name}.svg"
        assert section(of_cell, picture) in text
    assert overview(found, 3) in text


def test_results_of_the_paired_test_by_its_former_name_are_read(small: Path, tmp_path: Path) -> None:
    panel, modern = whole_study(small).panels[0], as_it_comes("adaqn-modern")
    row = Row(panel, modern, tmp_path)
    said = row.settings()
    assert said["options"]["acceptance"] == "paired"
    row.path.parent.mkdir()
    row.path.write_text(json.dumps({**said, "options": {**said["options"], "acceptance": "auto"}, "runs": []}))
    assert Row(panel, modern, tmp_path).runs == []
