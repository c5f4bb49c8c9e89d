"""The study of whole batches: one row for each method, equal evaluations, equal seconds, and a page."""

import json
import re
from pathlib import Path

import pytest
from laboratory import command

from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.study.plan import WHOLE, plan_file, whole_study
from adaqn.experiments.study.rows import KEPT, Row
from adaqn.experiments.study.whole_summary import whole_lines
from adaqn.experiments.training.whole_settings import PROBLEMS

METHODS = ["torch-lbfgs", "adam", "scipy-lbfgs"]
SMALL = {
    "seeds": 2,
    "points": 2,
    "tiny_methods": METHODS,
    "tiny": {
        "poisson-tiny": {
            "title": "Poisson, tiny", "task": "pinn", "problem": "poisson", "layers": 1, "hidden": 4, "points": 40,
            "steps": 60, "schedule": "cosine",
        }
    },
}  # fmt: skip


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "cells.json"
    path.write_text(json.dumps(SMALL))
    return path


def study(*words):
    done = command("study", *words)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_plan_of_the_package_has_every_problem_and_known_methods():
    plan = whole_study(plan_file(Path(WHOLE)))
    assert plan.is_whole
    assert {panel.base.problem for panel in plan.panels} == {name for names in PROBLEMS.values() for name in names}
    assert {variant.optimizer for panel in plan.panels for variant in panel.variants} <= set(TABLE)
    assert {panel.base.dtype for panel in plan.panels} == {"float32", "float64"}


def test_the_whole_of_a_study(small, tmp_path):
    results, out, page = tmp_path / "results", tmp_path / "out", tmp_path / "docs" / "whole.md"
    places = ("--tasks", small, "--results", results)
    study(*places, "--plan")
    assert not results.exists(), "--plan runs nothing"
    study(*places, "--out", out, "--workers", 1)
    plan = whole_study(small)
    (panel,) = plan.panels
    for variant in panel.variants:
        row = Row(panel, variant, results)
        assert not row.due(plan.seeds)
        assert not row.remaining(plan.seeds)
        assert len(row.tried()) == (2 if variant.optimizer == "adam" else 1), "a line search has no step size"
        trace = row.runs[0]["trace"]
        assert trace["step"][0] == 0
        assert trace["step"][-1] == 60
        assert len(trace["test_error"]) == len(trace["step"]) <= KEPT + 1
    study(*places, "--time")
    page.parent.mkdir()
    study(*places, "--page", page)
    text = page.read_text()
    assert all(TABLE[method].label in text for method in METHODS)
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (page.parent / picture).stat().st_size > 1000
    found = whole_lines(plan, results)["poisson-tiny"]
    assert [line.median for line in found] == sorted(line.median for line in found)
    yardstick = next(line for line in found if line.method == "torch-lbfgs")
    assert yardstick.share == 1.0
    assert yardstick.loss_in_time == yardstick.loss
    for line in found:
        assert all(then >= end for then, end in zip(line.loss_in_time, line.loss, strict=True))
    adam = next(line for line in found if line.method == "adam")
    assert adam.config.lr == adam.lr, "the command that repeats a row has the step size of that row"
