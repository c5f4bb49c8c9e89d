"""Every figure of the paper: fair plans, tuned step sizes, means over seeds, runs that are reused."""

import json
import math
import os
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaqn.experiments.commands.app import app
from adaqn.experiments.comparison.panels import plan, with_optimizers, with_panels
from adaqn.experiments.errors import UserError
from adaqn.experiments.figures import specs
from adaqn.experiments.figures.specs import FIGURES, SCALES, WORD_EPOCHS, figure_spec
from adaqn.experiments.figures.tuning_file import base_json, key, packaged, read_tuning, tuned_by
from adaqn.experiments.figures.work import FigureWork
from adaqn.experiments.search.points import IN_TIME
from adaqn.experiments.training.options import own_options

needs_data = pytest.mark.skipif("ADAQN_DATA" not in os.environ, reason="set ADAQN_DATA to draw from real data")
ROOT = Path(__file__).parents[3]
NAMES = pytest.mark.parametrize("name", FIGURES)
VARIED = ("optimizer", "lr", "options")
LENGTH = ("steps", "epochs", "evaluations")


def run(*words):
    done = CliRunner().invoke(app, ["figure", *(str(word) for word in words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


@NAMES
@pytest.mark.parametrize("scale", SCALES)
def test_all_curves_of_a_panel_have_the_same_task_data_model_and_seeds(name, scale, tmp_path):
    """At the paper's scale some have fewer seeds, and an average; searches have seed 0. One method has fewer steps."""
    spec = figure_spec(name, scale)
    work = FigureWork(spec, 3, tmp_path, known=lambda panel, variant: variant.on(panel.base))
    for panel in spec.panels:
        curves, settings = {}, {name for variant in panel.variants for name, _ in variant.settings}
        for curve in (curve for curve in work.curves if curve.panel.cell == panel.cell):
            for job in curve.planned():
                varied = (*VARIED, "seed", *settings, *(LENGTH if curve.variant.length != 1.0 else ()))
                same = {k: v for k, v in job.config.to_json().items() if k not in varied}
                curves.setdefault((curve.variant, job.config.lr), []).append((job.config.seed, json.dumps(same)))
        assert {variant for variant, _ in curves} == set(panel.variants)
        of_length = {variant.length: set() for variant in panel.variants}
        for (variant, _), of_curve in curves.items():
            of_length[variant.length] |= {same for _, same in of_curve}
        assert {len(same) for same in of_length.values()} == {1}
        assert all(set(json.loads(*of_length[1.0]).items()) >= set(json.loads(*s).items()) for s in of_length.values())
        for (variant, _), of_curve in curves.items():
            assert [seed for seed, _ in of_curve] == list(range(min(3, variant.most_seeds)))
        assert settings <= {"averaging"}, "nothing else may be a curve's own"
        if panel.searched is not None:
            shorter = {**panel.base.to_json(), "epochs": panel.searched.epochs, "evaluations": 1}
            assert panel.searched.to_json() == shorter


@NAMES
def test_every_curve_was_tuned_with_the_same_budget_at_the_size_it_is_drawn_at(name):
    spec = figure_spec(name, "quick")
    cells = read_tuning(packaged("quick"))
    for panel in spec.panels:
        if spec.sweep is not None or panel.search == IN_TIME:  # it shows all step sizes, or is of each machine
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
        assert (config.layers, config.length, config.limit) == (5, 50, None)
        words = config.task == "word-lm"  # fewer epochs than in the paper: docs/reproduction.md says so
        assert (config.hidden, config.epochs) == ((400, WORD_EPOCHS) if words else (100, 100.0))
    assert all(panel.base.complete().layers == 2 for panel in figure_spec("lstm", "paper").panels)


def test_a_figure_is_tuned_run_drawn_and_its_runs_are_reused(tmp_path):
    words = ["addition", "--epochs", 0.05, "--seeds", 2, "--out", tmp_path, "--json"]
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


def drawn_runs(name, panels, tmp_path):
    only = [word for panel in panels for word in ("--panel", panel)]
    done = json.loads(run(name, *only, "--epochs", 0.02, "--seeds", 1, "--out", tmp_path, "--json").stdout)
    assert all(math.isfinite(row["valid_loss"]["mean"]) for row in done["rows"])
    assert (tmp_path / f"{name}-quick-part.png").stat().st_size > 10_000
    return len(done["rows"])


@needs_data
@pytest.mark.parametrize(
    ("name", "panels", "runs"),
    [
        ("lm", ("Nietzsche, ReLU",), 3),
        ("memory", ("Penn Treebank, tanh",), 1),
        ("ablation", ("Dickens, LSTM",), 5),
    ],
)
def test_figures_are_drawn_from_real_runs(name, panels, runs, tmp_path):
    assert drawn_runs(name, panels, tmp_path) == runs


@needs_data
@pytest.mark.parametrize("side", [7, pytest.param(14, marks=pytest.mark.slow)])
def test_the_figure_of_images_is_drawn_from_real_runs(side, tmp_path, monkeypatch):
    """Of fewer pixels, since all test images are evaluated one pixel at a time; and of those that it has."""
    real = specs.sizes
    assert real("pixel-mnist", "quick")["side"] == 14

    def smaller(task, scale):
        return {**real(task, scale), **({"side": side} if task == "pixel-mnist" else {})}

    monkeypatch.setattr(specs, "sizes", smaller)
    assert drawn_runs("mnist", (), tmp_path) == 3


@needs_data
@pytest.mark.parametrize(("name", "curves", "runs"), [("sensitivity", (1, 5), 12), ("robustness", (1,), 7)])
def test_sweeps_of_fewer_curves_are_drawn_from_real_runs(name, curves, runs, tmp_path, monkeypatch):
    every = getattr(specs, name.upper())
    monkeypatch.setattr(specs, name.upper(), tuple(every[i] for i in curves))
    assert drawn_runs(name, ("Dickens",), tmp_path) == runs


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runs"),
    [("lm", 18), ("memory", 6), ("lstm", 9), ("ablation", 10), ("sensitivity", 36), ("robustness", 56)],
)
def test_each_figure_is_drawn_whole_from_real_runs(name, runs, tmp_path):
    assert drawn_runs(name, (), tmp_path) == runs


def test_a_plan_runs_nothing_to_its_end(tmp_path):
    places = ["--out", tmp_path, "--results", tmp_path]
    words = ["addition", "--plan", "--scale", "paper", "--panel", "50", *places, "--json"]
    rows = {row["curve"]: row for row in json.loads(run(*words).stdout)}
    assert {curve: row["runs"] for curve, row in rows.items()} == {
        **dict.fromkeys(("adaQN", "Adagrad", "Adam"), 9 + 3), "AdaQN (default)": 1, "SOAP": 9 + 1,
    }  # fmt: skip
    assert all(row["hours"] > 0 for row in rows.values())
    assert not list(tmp_path.glob("runs/*"))


def test_a_curve_of_the_figure_can_be_asked_for_by_its_name(tmp_path):
    places = ["--out", tmp_path, "--results", tmp_path]
    words = ["addition", "--plan", "--scale", "paper", "--panel", "50", "--optimizers", "adaqn-default", *places]
    assert [row["curve"] for row in json.loads(run(*words, "--json").stdout)] == ["AdaQN (default)"]


def test_curves_asked_for_by_name_are_those_of_each_panel():
    spec = with_optimizers(figure_spec("lstm", "paper"), ["adaqn-default", "soap"])
    own = {panel.title: panel.variants for panel in figure_spec("lstm", "paper").panels}
    for panel in spec.panels:
        assert [variant.name for variant in panel.variants] == ["adaqn-default", "soap"]
        for variant in panel.variants:
            (original,) = (v for v in own[panel.title] if v.name == variant.name)
            assert (variant.options, variant.settings) == (original.options, original.settings)


def test_mistakes_are_one_clear_error(tmp_path):
    spec = figure_spec("addition", "quick")
    with pytest.raises(UserError, match="no figure called 'lms'"):
        figure_spec("lms", "quick")
    with pytest.raises(UserError, match="no scale called 'huge'"):
        figure_spec("lm", "huge")
    with pytest.raises(UserError, match="--tune first"):
        FigureWork(spec, 1, tmp_path, known=tuned_by(tmp_path / "none.json"))
    with pytest.raises(UserError, match="no panel of lm is called moby"):
        with_panels(figure_spec("lm", "quick"), ["moby"])
    with pytest.raises(UserError, match="fixed"):
        with_optimizers(figure_spec("ablation", "quick"), ["adam"])
    with pytest.raises(UserError, match="seeds must be from 1 to 1000"):
        plan(spec, 0)
    with pytest.raises(UserError, match="memory shows runs of lm by adaqn, not soap"):
        with_optimizers(figure_spec("memory", "paper"), ["soap"])
    for words in (["--plan"], ["--tune"], ["--budget-hours", 1], ["--tuning", "quick"], ["--seeds", 7]):
        with pytest.raises(UserError, match="--redraw runs nothing"):
            run("lm", "--redraw", *words)
    for words in (["--steps", 50], ["--dtype", "float64"], ["--problem", "wave"]):
        with pytest.raises(UserError, match="are for pinn and noise: leave them out for lm"):
            run("lm", *words)
    with pytest.raises(UserError, match="family has one size"):
        run("family", "--scale", "paper", "--plan")
    with pytest.raises(UserError, match="no panel of lm is called Nietsche: it has Dickens"):
        run("lm", "--redraw", "--panel", "Dickens", "--panel", "Nietsche")
    with pytest.raises(UserError, match="no panel of lm is called ''"):
        run("lm", "--redraw", "--panel", "")
    with pytest.raises(UserError, match=r"no panel of lm, memory, .* is called nosuch: it has"):
        run("all", "--redraw", "--panel", "Dickens", "--panel", "nosuch")
    with pytest.raises(UserError, match="no results to draw"):
        run("all", "--redraw", "--results", tmp_path, "--out", tmp_path)


def test_all_that_there_is_of_a_panel_is_drawn_again(tmp_path):
    """Figures that have no such panel are passed over."""
    kept = ROOT / "experiments" / "quick"
    words = ["all", "--redraw", "--panel", "Nietzsche", "--panel", "addition", "--results", kept, "--out", tmp_path]
    run(*words)
    drawn = {path.stem.removesuffix("-quick-part") for path in tmp_path.glob("*-quick-part.png")}
    assert drawn == {"lm", "memory", "lstm", "robustness", "addition"}
    assert (tmp_path / "family-quick-part-addition.png").exists()


def test_panels_of_which_there_is_nothing_are_left_out(tmp_path):
    """The words of the paper's scale take days."""
    run("lstm", "--scale", "paper", "--redraw", "--results", ROOT / "experiments" / "paper", "--out", tmp_path)
    picture = (tmp_path / "lstm-paper.svg").read_text()
    assert "<!-- Dickens, LSTM -->" in picture
    assert "<!-- Penn Treebank, LSTM -->" not in picture
    assert "not run: Penn Treebank, LSTM -->" in picture, "but named above all panels"
    rows = json.loads((tmp_path / "lstm-paper.json").read_text())
    assert {row["panel"] for row in rows} == {"Dickens, LSTM", "Nietzsche, LSTM"}


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_the_pictures_of_the_documentation_are_those_of_the_committed_results(scale, tmp_path):
    """`make figures` draws them."""
    run("all", "--scale", scale, "--redraw", "--results", ROOT / "experiments" / scale, "--out", tmp_path)
    tables = sorted(path.name for path in tmp_path.glob("*.json"))
    assert tables
    for name in tables:
        assert json.loads((ROOT / "docs" / "figures" / name).read_text()) == json.loads((tmp_path / name).read_text())
    pictures = {path.name for path in tmp_path.glob("*.svg")}
    assert pictures <= {path.name for path in (ROOT / "docs" / "figures").glob("*.svg")}


def test_other_optimizers_and_fewer_panels_can_be_asked_for():
    spec = with_panels(with_optimizers(figure_spec("lm", "quick"), ["adam", "nag"]), ["dickens"])
    assert [panel.title for panel in spec.panels] == ["Dickens, tanh", "Dickens, ReLU"]
    assert [variant.label for variant in spec.panels[0].variants] == ["Adam", "NAG"]
