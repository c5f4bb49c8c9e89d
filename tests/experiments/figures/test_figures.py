"""Every figure of the paper: fair plans, tuned step sizes, means over seeds, runs that are reused."""

import json
import math
import os
import statistics

import pytest
from typer.testing import CliRunner

from adaqn.experiments.commands.app import app
from adaqn.experiments.comparison.panels import plan, with_optimizers, with_panels
from adaqn.experiments.errors import UserError
from adaqn.experiments.figures.specs import FIGURES, PLAIN, SCALES, figure_spec
from adaqn.experiments.figures.tuning_file import base_json, key, packaged, read_tuning, tuned_by
from adaqn.experiments.training.options import own_options

needs_data = pytest.mark.skipif("ADAQN_DATA" not in os.environ, reason="set ADAQN_DATA to draw from real data")
NAMES = pytest.mark.parametrize("name", FIGURES)
VARIED = ("optimizer", "lr", "options")


def run(*words, code=0):
    done = CliRunner().invoke(app, ["figure", *(str(word) for word in words)], catch_exceptions=code == 0)
    if code == 0:
        assert done.exit_code == 0, done.output
    return done


@NAMES
@pytest.mark.parametrize("scale", SCALES)
def test_all_curves_of_a_panel_have_the_same_task_data_model_and_seeds(name, scale):
    spec = figure_spec(name, scale)
    planned = plan(spec, 3, tuned_by(packaged("quick")))
    for panel in spec.panels:
        curves = {}
        for p in (p for p in planned if p.panel.cell == panel.cell):
            same = {k: v for k, v in p.config.to_json().items() if k not in VARIED}
            curves.setdefault((p.variant.name, p.config.lr), []).append(json.dumps(same))
        assert {variant for variant, _ in curves} == {variant.name for variant in panel.variants}
        assert len({tuple(sorted(settings)) for settings in curves.values()}) == 1
        assert all(len(settings) == 3 for settings in curves.values())


@NAMES
def test_every_curve_was_tuned_with_the_same_budget_at_the_size_it_is_drawn_at(name):
    spec = figure_spec(name, "quick")
    cells = read_tuning(packaged("quick"))
    for panel in spec.panels:
        if spec.sweep is not None:  # it shows all step sizes
            continue
        cell = cells[key(panel)]
        assert cell["base"] == base_json(panel)
        assert cell["command"].startswith("adaqn figure ")
        for variant in panel.variants:
            found = cell["curves"][variant.name]
            assert len(found["trials"]) == found["budget"] == panel.budget
            assert found["best"]["valid_loss"] == min(trial["valid_loss"] for trial in found["trials"])


def test_the_language_models_are_six_panels_at_the_papers_size():
    panels = figure_spec("lm", "paper").panels
    assert [panel.cell for panel in panels] == [
        f"{task}/{data}/{model}"
        for model in ("tanh", "relu")
        for task, data in (("char-lm", "dickens"), ("char-lm", "nietzsche"), ("word-lm", "ptb"))
    ]
    for panel in panels:
        config = panel.base.complete()
        assert (config.layers, config.length, config.epochs, config.limit) == (5, 50, 100.0, None)
        assert config.hidden == (400 if config.task == "word-lm" else 100)
    assert all(panel.base.complete().layers == 2 for panel in figure_spec("lstm", "paper").panels)


def test_a_figure_is_tuned_run_drawn_and_its_runs_are_reused(tmp_path):
    words = ["addition", "--epochs", 0.1, "--seeds", 2, "--out", tmp_path, "--json"]
    first = json.loads(run(*words, "--tune").stdout)
    assert {row["curve"] for row in first["rows"]} == {"adaQN", "Adagrad", "Adam"}
    results = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")}
    assert len(results) == 3 * (9 + 1)  # the tuned run of seed 0 is one of the search
    for row in first["rows"]:
        losses = [
            found["final"]["test_loss"]
            for found in (json.loads(path.read_text()) for path in results)
            if found["config"]["lr"] == row["lr"]
            and own_options(found["config"]["optimizer"], found["config"]["options"]) == row["options"]
            and found["config"]["optimizer"] == {"adaQN": "adaqn-paper"}.get(row["curve"], row["curve"].lower())
        ]
        assert len(losses) == 2
        assert row["test_loss"]["mean"] == pytest.approx(statistics.fmean(losses))
        assert (row["test_loss"]["low"], row["test_loss"]["high"]) == (min(losses), max(losses))
    assert (tmp_path / "addition-quick-part.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "addition-quick-part.svg").read_text()
    again = json.loads(run(*words, "--tuning", tmp_path / "tuning-quick.json").stdout)
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")} == results


@needs_data
@pytest.mark.parametrize(
    ("name", "panels", "runs"),
    [
        ("lm", (), 18),
        ("memory", (), 6),
        ("lstm", (), 9),
        ("mnist", (), 3),
        ("ablation", (), 10),
        ("sensitivity", (), 36),
        ("robustness", ("Dickens",), 28),
        pytest.param("robustness", (), 56, marks=pytest.mark.slow),
    ],
)
def test_each_figure_is_drawn_from_real_runs(name, panels, runs, tmp_path):
    only = [word for panel in panels for word in ("--panel", panel)]
    done = json.loads(run(name, *only, "--epochs", 0.02, "--seeds", 1, "--out", tmp_path, "--json").stdout)
    assert len(done["rows"]) == runs
    assert all(math.isfinite(row["valid_loss"]["mean"]) for row in done["rows"])
    assert (tmp_path / f"{name}-quick-part.png").stat().st_size > 10_000


def test_an_estimate_runs_nothing_to_its_end(tmp_path):
    rows = json.loads(run("addition", "--estimate", "--scale", "paper", "--out", tmp_path, "--json").stdout)
    assert len(rows) == 3
    assert all(row["hours"] > 0 and row["runs"] == 3 for row in rows)
    assert not list(tmp_path.glob("runs/*"))


def test_mistakes_are_one_clear_error(tmp_path):
    spec = figure_spec("addition", "quick")
    with pytest.raises(UserError, match="no figure called 'lms'"):
        figure_spec("lms", "quick")
    with pytest.raises(UserError, match="no scale called 'huge'"):
        figure_spec("lm", "huge")
    with pytest.raises(UserError, match="--tune first"):
        plan(spec, 1, tuned_by(tmp_path / "none.json"))
    with pytest.raises(UserError, match="no panel of lm is called moby"):
        with_panels(figure_spec("lm", "quick"), ["moby"])
    with pytest.raises(UserError, match="fixed"):
        with_optimizers(figure_spec("ablation", "quick"), PLAIN, ["adam"])
    with pytest.raises(UserError, match="seeds must be from 1 to 1000"):
        plan(spec, 0)


def test_other_optimizers_and_fewer_panels_can_be_asked_for():
    spec = with_panels(with_optimizers(figure_spec("lm", "quick"), PLAIN, ["adam", "nag"]), ["dickens"])
    assert [panel.title for panel in spec.panels] == ["Dickens, tanh", "Dickens, ReLU"]
    assert [variant.label for variant in spec.panels[0].variants] == ["Adam", "NAG"]
