"""A figure in several sittings: what is due in which order, what there is of it, and what is kept."""

import json
import math
import signal
import subprocess
import time
from dataclasses import replace

import pytest
from inline import inline_workers
from laboratory import ADAQN, at_step, wait_until
from typer.testing import CliRunner

from adaqn.experiments.commands import figure as command
from adaqn.experiments.commands import working
from adaqn.experiments.commands.app import app
from adaqn.experiments.commands.figure_pictures import draw_kept, print_rows
from adaqn.experiments.comparison import plots
from adaqn.experiments.comparison.panels import Comparison, Curve, Panel, Variant, View, with_optimizers
from adaqn.experiments.comparison.summary import summary_rows
from adaqn.experiments.errors import UserError
from adaqn.experiments.figures import specs
from adaqn.experiments.figures.kept import MOST_POINTS, file_of, keep, kept_curves
from adaqn.experiments.figures.specs import FAMILY, PLAIN, figure_spec
from adaqn.experiments.figures.tuning_file import packaged, tuned_by
from adaqn.experiments.figures.work import FigureWork
from adaqn.experiments.search import tune
from adaqn.experiments.training import parallel
from adaqn.experiments.training.claims import busy
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished, folder_name
from adaqn.experiments.training.parallel import Outcome, run_one
from adaqn.experiments.training.run import Progress
from limits import LIMIT

BASE = RunConfig(task="addition", hidden=4, length=4, limit=128, batch_size=16, epochs=2.0)
ADAM, SGD, SOAP = (Variant(name, name, name) for name in ("adam", "sgd", "soap"))
PANEL = Panel("sums", BASE, (ADAM, SGD, replace(SOAP, rank=1, most_seeds=1)), name="sums")
SPEC = Comparison("sums", "sums", (PANEL, replace(PANEL, name="others", base=replace(BASE, length=6))))


@pytest.fixture
def inline(monkeypatch):
    monkeypatch.setattr(parallel, "started_workers", inline_workers)


def figure(*words):
    done = CliRunner().invoke(app, ["figure", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def known_work(root, spec=SPEC):
    return FigureWork(spec, 2, root, known=lambda panel, variant: replace(variant.on(panel.base), lr=0.01))


# ---------------------------------------------------------------------- order


def test_seed_by_seed_with_all_methods_of_a_panel_side_by_side(tmp_path):
    order = [(job.config.seed, job.cell, job.config.optimizer) for job in known_work(tmp_path).due()]
    first = [(seed, cell, name) for seed in (0, 1) for cell in ("sums", "others") for name in ("adam", "sgd")]
    assert order == [*first, (0, "sums", "soap"), (0, "others", "soap")]


def test_step_sizes_are_searched_before_the_runs_that_need_them(tmp_path):
    spec = figure_spec("lm", "paper")
    jobs = FigureWork(spec, 3, tmp_path).due()
    searched = [job for job in jobs if job.config.optimizer != "adaqn"]
    assert {job.config.epochs for job in searched if job.config.task == "char-lm"} == {5.0}, "five full epochs"
    whole = {job.config.epochs for job in jobs if job not in searched and job.config.task == "char-lm"}
    assert whole == {100.0}, "AdaQN runs as it comes"
    assert {job.config.seed for job in jobs} == {0}
    cells = list(dict.fromkeys((job.group[0], job.cell) for job in jobs))
    texts = [f"char-lm/{text}/{model}" for model in ("tanh", "relu") for text in ("dickens", "nietzsche")]
    words = ["word-lm/ptb/tanh", "word-lm/ptb/relu"]
    assert cells == [(0, cell) for cell in texts] + [(1, cell) for cell in texts] + [
        (rank, cell) for rank in (2, 3) for cell in words
    ], "the paper's three on characters, the two beside them, then words"
    first = [job.config.optimizer for job in jobs if job.group == jobs[0].group]
    assert {name: first.count(name) for name in first} == {"adaqn-paper": 6, "adagrad": 9, "adam": 6}


def test_a_curve_with_a_step_size_of_its_own_is_not_searched(tmp_path):
    panel = replace(PANEL, variants=(ADAM, replace(SGD, lr=0.02)))
    for known in (None, lambda panel, variant: replace(variant.on(panel.base), lr=0.01)):
        work = FigureWork(replace(SPEC, panels=(panel,)), 1, tmp_path, known=known)
        assert [job.config.lr for job in work.curves[1].planned()] == [0.02]


def test_a_curve_judged_at_an_average_is_searched_kept_tabled_and_drawn_there(tmp_path):
    averaged = replace(ADAM, settings=(("averaging", 8.0),), at_average=True)
    panel = replace(PANEL, variants=(SGD, averaged), search="lr", budget=2)
    work = FigureWork(replace(SPEC, panels=(panel,)), 1, tmp_path / "runs")
    while jobs := work.due():
        for job in jobs:
            run_one(job.config, job.folder)
    plain, curve = (curve.curve() for curve in work.curves)
    run, trials = curve.runs[0], work.curves[1].known.results()["trials"]
    final = run.result["final"]
    assert final["averaged_valid_loss"] != final["valid_loss"]
    assert trials[0]["valid_loss"] == final["averaged_valid_loss"], "the best point, at the average"
    keep(panel, [plain, curve], tmp_path, "adaqn figure sums", {})
    again = kept_curves(panel, tmp_path)[1]
    line = plots.line_of(again.shown, averaged, View())
    assert line.label == "adam, average"
    assert line.mean == pytest.approx([record["averaged_test_loss"] for record in run.metrics], rel=1e-5)
    first, row = summary_rows([plain, again])
    assert ("judged_at" in first, row["judged_at"]) == (False, "average")
    lowest = min(run.metrics, key=lambda record: record["averaged_valid_loss"])
    assert row["stopped_test_loss"]["mean"] == pytest.approx(lowest["averaged_test_loss"], rel=1e-5)
    print_rows([first, row], work.spec)


def test_searches_of_a_panel_advance_side_by_side(tmp_path):
    spec = replace(SPEC, panels=(replace(PANEL, variants=(ADAM, SGD), search="lr", budget=3),))
    assert [job.config.optimizer for job in FigureWork(spec, 1, tmp_path).due()] == ["adam", "sgd"] * 3


def test_two_figures_share_their_runs(tmp_path):
    lm, memory = (FigureWork(figure_spec(name, "paper"), 3, tmp_path) for name in ("lm", "memory"))
    assert {job.folder for job in memory.due()} < {job.folder for job in lm.due()}
    assert {job.config.optimizer for job in memory.due()} == {"adaqn-paper"}


def test_the_family_is_every_method_on_three_tasks_with_budgets_in_time(tmp_path):
    spec = figure_spec("family", "paper")
    assert [panel.base.task for panel in spec.panels] == ["char-lm", "mlp", "addition"]
    assert {view.against for view in spec.views} == {"step", "passes", "seconds"}
    jobs = FigureWork(spec, 3, tmp_path).due()
    assert len(jobs) == 3 * len(FAMILY), "one point each, until it is known how long one takes"
    assert len(set(FAMILY)) == 16
    by_method = {job.config.optimizer: job.config for job in jobs if job.config.task == "addition"}
    adam, hf = by_method["adam"], by_method["hf"]
    assert (adam.steps, hf.steps) == (3_000, 300), "a step of Hessian-Free takes up to a hundred gradients"
    assert adam.steps * adam.evaluations == hf.steps * hf.evaluations, "as many points in a curve"
    characters = {job.config.optimizer: job.config for job in jobs if job.config.task == "char-lm"}
    assert characters["hf"].epochs == characters["adam"].epochs / 10
    asked = FigureWork(with_optimizers(spec, ["hf", "adaqn"]), 3, tmp_path).due()
    assert {job.config.identity() for job in asked} < {job.config.identity() for job in jobs}, "the figure's own curves"


# ---------------------------------------------------------------------- what there is of it


@pytest.fixture
def begun(tmp_path):
    """Adam has one seed of two and is on its way with the other, SGD is on its way, SOAP was not begun."""
    runs, work = tmp_path / "runs", known_work(tmp_path / "runs", replace(SPEC, panels=(PANEL,)))
    adam, sgd = ({job.config.seed: job for job in curve.planned()} for curve in work.curves[:2])
    run_one(adam[0].config, adam[0].folder)
    for job in (adam[1], sgd[0]):
        with pytest.raises(KeyboardInterrupt):
            run_one(job.config, job.folder, None, at_step(8))
    return known_work(runs, replace(SPEC, panels=(PANEL,)))


def test_what_there_is_says_how_much_of_it_there_is(begun):
    adam, sgd, soap = (curve.curve() for curve in begun.curves)
    assert adam.note == "1 of 2 seeds, 1 of 2 epochs of the next"
    assert sgd.note == "0 of 2 seeds, 1 of 2 epochs of the first"
    assert soap.note == "not run"
    assert ([run.share for run in adam.runs], [run.share for run in sgd.runs], soap.runs) == ([1.0, 0.5], [0.5], ())
    assert adam.shown == adam.runs[:1]
    left = {part.optimizer: (part.runs, part.units) for part in begun.left()}
    assert left == {"adam": (1, 1.0), "sgd": (2, 3.0), "soap": (1, 2.0)}


def test_what_there_is_is_drawn_as_far_as_it_goes(begun):
    figure, axes = plots.plt.subplots()
    curves = [curve.curve() for curve in begun.curves]
    lines = plots.draw_panel(axes, curves, PANEL, View())
    adam, sgd = lines
    assert (adam.x[-1], sgd.x[-1]) == (2.0, 1.0)
    assert " at " not in adam.label
    assert sgd.label.endswith(" at 1")
    [thin] = [drawn for drawn in axes.lines if drawn.get_label() == "_"]
    assert thin.get_xdata()[-1] == 1.0
    [missing] = [text.get_text().splitlines() for text in axes.texts]
    for name, note in (("adam", "1 of 2 seeds"), ("sgd", "0 of 2 seeds, 1 of 2 epochs"), ("soap", "not run")):
        assert any(line.startswith(name) and note in line for line in missing)
    plots.name_curves(figure, {axes: lines})
    figure.canvas.draw()
    [above] = [text.get_window_extent() for text in axes.texts if text.get_text().startswith("adam: ")]
    assert above.y0 > axes.get_window_extent().y1, "no curve is there"
    plots.plt.close(figure)


def test_a_search_at_work_says_how_far_it_is(tmp_path, inline):
    work = FigureWork(replace(SPEC, panels=(replace(PANEL, search="lr", budget=3),)), 1, tmp_path)
    job = work.due()[0]
    run_one(job.config, job.folder)
    assert len(work.due()) == 3 + 3 + 3 - 1
    assert work.curves[0].curve() == Curve(work.curves[0].panel, ADAM, (), "search: 1 of 3 runs")


# ---------------------------------------------------------------------- what is kept


def test_kept_results_are_those_of_the_runs(begun, tmp_path):
    curves = [curve.curve() for curve in begun.curves]
    keep(PANEL, curves, tmp_path, "adaqn figure sums", {"adam": {"best": {"lr": 0.01}, "trials": []}})
    kept = kept_curves(PANEL, tmp_path)
    assert [(curve.variant, curve.note) for curve in kept] == [(curve.variant, curve.note) for curve in curves]
    for before, after in zip(curves, kept, strict=True):
        assert [run.share for run in after.runs] == [run.share for run in before.runs]
        for run, again in zip(before.runs, after.runs, strict=True):
            assert again.result["final"] == run.result["final"]
            assert [record["test_loss"] for record in again.metrics] == pytest.approx(
                [record["test_loss"] for record in run.metrics], rel=1e-5
            )
    said = json.loads(file_of(PANEL, tmp_path).read_text())
    assert said["command"] == "adaqn figure sums"
    assert said["curves"]["adam"]["command"].startswith("for seed in 0 1; do adaqn train --task addition")
    assert said["curves"]["adam"]["search"]["best"] == {"lr": 0.01}


def test_what_another_machine_has_kept_is_not_lost(begun, tmp_path):
    adam, sgd, _ = (curve.curve() for curve in begun.curves)
    keep(PANEL, [adam, sgd], tmp_path, "", {})
    keep(PANEL, [replace(adam, runs=()), replace(sgd, runs=(*sgd.runs, *adam.finished))], tmp_path, "", {})
    kept = {curve.variant: curve for curve in kept_curves(PANEL, tmp_path)}
    assert [run.share for run in kept[ADAM].runs] == [1.0, 0.5]
    assert [run.share for run in kept[SGD].runs] == [0.5, 1.0]
    assert kept[PANEL.variants[2]].note == "not run"


def changed(run, share=1.0, **settings):
    """As if that run had been made with other settings."""
    result = {**run.result, "config": {**run.result["config"], **settings}}
    return Finished(run.folder, result, run.metrics, share)


def test_a_short_try_with_another_step_size_does_not_replace_longer_runs(begun, tmp_path):
    adam = begun.curves[0].curve()
    whole, _ = adam.runs
    assert keep(PANEL, [replace(adam, runs=(whole,))], tmp_path, "adaqn figure", {}) == []
    before = file_of(PANEL, tmp_path).read_bytes()
    tried = replace(adam, runs=(changed(whole, 0.01, lr=0.3),))
    assert keep(PANEL, [tried], tmp_path, "adaqn figure", {}) == ["adam"]
    assert file_of(PANEL, tmp_path).read_bytes() == before
    assert keep(PANEL, [replace(adam, runs=(changed(whole, lr=0.3),))], tmp_path, "adaqn figure", {}) == []
    assert [run.result["config"]["lr"] for run in kept_curves(PANEL, tmp_path)[0].runs] == [0.3]


def test_a_run_with_other_threads_is_the_same_run(begun, tmp_path):
    """It is neither kept twice, as if it were another seed, nor made again."""
    adam = begun.curves[0].curve()
    whole, _ = adam.runs
    for threads in (1, 2):
        keep(PANEL, [replace(adam, runs=(changed(whole, threads=threads),))], tmp_path, "adaqn figure", {})
    assert len(kept_curves(PANEL, tmp_path)[0].runs) == 1
    work = FigureWork(
        replace(SPEC, panels=(replace(PANEL, base=replace(BASE, threads=3)),)),
        1,
        tmp_path / "elsewhere",
        known=lambda panel, variant: replace(variant.on(panel.base), lr=0.01),
        kept=tmp_path,
    )
    assert [job.config.optimizer for job in work.due()] == ["sgd", "soap"]


def test_who_only_looks_changes_no_file(begun, tmp_path):
    adam, sgd, soap = (curve.curve() for curve in begun.curves)
    keep(PANEL, [soap], tmp_path, "adaqn figure", {"soap": {"best": None, "trials": []}})
    assert not file_of(PANEL, tmp_path).exists(), "there was nothing to keep"
    keep(PANEL, [adam, sgd], tmp_path, "adaqn figure --seeds 2", {})
    before = file_of(PANEL, tmp_path).read_bytes()
    keep(PANEL, [replace(adam, note="1 of 3 seeds"), sgd, soap], tmp_path, "adaqn figure", {})
    assert file_of(PANEL, tmp_path).read_bytes() == before


def test_long_traces_are_thinned(begun, tmp_path):
    adam = begun.curves[0].curve().runs[0]
    record = adam.metrics[-1]
    long = Finished(adam.folder, adam.result, [{**record, "step": i, "epoch": math.pi * i} for i in range(20_000)])
    keep(PANEL, [Curve(PANEL, ADAM, (long,) * 3)], tmp_path, "", {})
    assert file_of(PANEL, tmp_path).stat().st_size < 100_000
    metrics = kept_curves(PANEL, tmp_path)[0].runs[0].metrics
    assert len(metrics) <= MOST_POINTS + 1
    assert (metrics[0]["step"], metrics[-1]["step"]) == (0, 19_999)


def test_results_of_other_settings_are_named_and_left_alone(begun, tmp_path):
    keep(PANEL, [begun.curves[0].curve()], tmp_path, "", {})
    with pytest.raises(UserError, match=r"made with other settings: give another --results, or move"):
        kept_curves(replace(PANEL, base=replace(BASE, epochs=3.0)), tmp_path)
    file_of(PANEL, tmp_path).write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        kept_curves(PANEL, tmp_path)


# ---------------------------------------------------------------------- the command


@pytest.fixture
def tiny(monkeypatch):
    """The figure of sums in the place of the addition problem."""
    small = replace(PANEL, variants=(ADAM, SGD), search="lr", budget=2, searched=replace(BASE, epochs=1.0))
    spec = Comparison("addition", "sums", (small,))
    monkeypatch.setattr(command, "figure_spec", lambda name, scale: replace(spec, name=name))
    monkeypatch.setattr(command, "FIGURES", ("addition", "memory"))
    return spec


def test_within_a_budget_and_then_to_the_end(tiny, inline, tmp_path, monkeypatch):
    """At the paper's scale step sizes are searched first. A budget of nothing makes nothing, and is no mistake."""
    places = ("--out", tmp_path / "out", "--results", tmp_path / "kept")
    words = ("addition", "--scale", "paper", "--seeds", 2, *places)
    assert "the budget is spent; 8 runs are left" in figure(*words, "--budget-hours", 0)
    assert not list(tmp_path.glob("out/*.png"))
    done = json.loads(figure(*words, "--budget-hours", 1, "--json"))
    assert len(list(tmp_path.glob("out/runs/*/result.json"))) == 2 * (2 + 2)
    assert {row["seeds"] for row in done["rows"]} == {2}
    assert all("missing" not in row for row in done["rows"])
    assert len(json.loads((tmp_path / "kept" / "addition" / "sums.json").read_text())["curves"]["adam"]["runs"]) == 2
    tuned = json.loads((tmp_path / "out" / "tuning-paper.json").read_text())["cells"]["sums/lr"]["curves"]["adam"]
    assert tuned["best"]["lr"] == done["rows"][0]["lr"]

    made = (tmp_path / "out" / "addition-paper.svg").read_bytes()
    again = tmp_path / "again"
    redraw = ("--scale", "paper", "--redraw", "--results", tmp_path / "kept", "--out", again)
    figure("addition", *redraw)
    assert (again / "addition-paper.svg").read_bytes() == made, "drawn from the kept results, it is the same picture"
    (again / "addition-paper.svg").unlink()
    figure("all", *redraw)
    pictures = {path.name for path in again.glob("*.svg")}
    assert pictures == {"addition-paper.svg", "addition-paper-phone.svg"}, "those that there are results of"
    with pytest.raises(UserError, match="no results of memory"):
        figure("memory", *redraw)
    with pytest.raises(UserError, match="'all' goes with --redraw"):
        figure("all", "--scale", "paper")


@pytest.mark.parametrize("search", ["lr", "time"])
def test_another_machine_continues_from_the_kept_results_alone(tiny, inline, tmp_path, monkeypatch, search):
    """Their folders of runs are not there: one seed and the search are not made again, the other seeds are."""
    spec = replace(tiny, panels=(replace(tiny.panels[0], search=search),))
    monkeypatch.setattr(command, "figure_spec", lambda name, scale: spec)
    kept = tmp_path / "kept" / "addition" / "sums.json"

    def in_folder(name, seeds):
        words = ("addition", "--scale", "paper", "--seeds", seeds, "--out", tmp_path / name)
        rows = json.loads(figure(*words, "--results", tmp_path / "kept", "--json"))["rows"]
        made = [json.loads(path.read_text())["config"] for path in tmp_path.glob(f"{name}/runs/*/result.json")]
        return rows, made

    rows, _ = in_folder("one", 1)
    before = json.loads(kept.read_text())["curves"]
    assert all(curve["search"]["trials"] for curve in before.values())
    again, nothing = in_folder("two", 1)
    assert (again, nothing) == (rows, [])
    assert json.loads(kept.read_text())["curves"] == before, "to the last digit, the search too"
    _, later = in_folder("three", 3)
    assert sorted((run["optimizer"], run["seed"]) for run in later) == [
        ("adam", 1),
        ("adam", 2),
        ("sgd", 1),
        ("sgd", 2),
    ]
    assert {run["lr"] for run in later if run["optimizer"] == "adam"} == {rows[0]["lr"]}
    after = json.loads(kept.read_text())["curves"]
    assert [run["config"]["seed"] for run in after["sgd"]["runs"]] == [0, 1, 2]
    assert after["adam"]["search"] == before["adam"]["search"]


def test_kept_trials_of_a_shorter_search_say_nothing(tiny, inline, tmp_path, monkeypatch):
    words = ("addition", "--scale", "paper", "--seeds", 1, "--results", tmp_path / "kept")
    figure(*words, "--out", tmp_path / "one")
    panel = replace(tiny.panels[0], searched=replace(BASE, epochs=1.5))
    monkeypatch.setattr(command, "figure_spec", lambda name, scale: replace(tiny, panels=(panel,)))
    figure(*words, "--out", tmp_path / "two")
    made = [json.loads(path.read_text())["config"]["epochs"] for path in tmp_path.glob("two/runs/*/result.json")]
    assert made.count(1.5) == 4


def test_a_run_that_fails_at_night_stops_no_other(tiny, inline, tmp_path, monkeypatch):
    wrong = replace(SGD, options=(("nosuch", 1),))
    spec = replace(tiny, panels=(replace(tiny.panels[0], variants=(wrong, ADAM)),))
    monkeypatch.setattr(command, "figure_spec", lambda name, scale: spec)
    words = ("addition", "--scale", "paper", "--seeds", 1, "--out", tmp_path, "--results", tmp_path / "kept")
    with pytest.raises(
        UserError, match=r"2 runs failed, the others are done; the first error: sgd has no option nosuch"
    ):
        figure(*words, "--budget-hours", 1)
    assert "adam" in (tmp_path / "addition-paper.json").read_text()


def test_a_kill_leaves_the_results_of_all_finished_runs(tiny, inline, tmp_path, monkeypatch):
    """They are kept as they come: nothing is done at the end that a kill would prevent."""
    places = ("--out", tmp_path, "--results", tmp_path / "kept")
    real = command.FigureWork.due

    def killed(work):
        if len(list(tmp_path.glob("runs/*/result.json"))) > 6:
            raise RuntimeError
        return real(work)

    monkeypatch.setattr(command.FigureWork, "due", killed)
    with pytest.raises(RuntimeError):
        figure("addition", "--scale", "paper", *places)
    drawn = json.loads(figure("addition", "--scale", "paper", "--redraw", "--json", *places))
    assert sum(row["seeds"] for row in drawn["rows"]) == 2, "after four runs of the searches"


def test_sigterm_saves_keeps_and_draws_as_ctrl_c_does(tmp_path):
    """What a batch system sends when the time is over."""
    words = ["addition", "--optimizers", "adam", "--epochs", "3", "--seeds", "50", "--workers", "1"]
    places = ["--out", str(tmp_path), "--results", str(tmp_path / "kept")]
    process = subprocess.Popen(
        [*ADAQN, "figure", *words, *places], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    kept = tmp_path / "kept" / "addition" / "addition-embedded-tanh.json"
    wait_until(kept.exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LIMIT) == 130
    assert (tmp_path / "addition-quick-part.png").exists()
    assert 0 < len(json.loads(kept.read_text())["curves"]["adam"]["runs"]) < 50
    assert all(busy(folder, time.time()) is None for folder in tmp_path.glob("runs/*"))


def test_runs_with_another_step_size_take_the_place_of_those_before(tiny, inline, tmp_path):
    places = ("--out", tmp_path, "--results", tmp_path / "kept", "--json")
    before = json.loads(figure("addition", "--scale", "paper", "--seeds", 2, *places))["rows"]
    tuned = json.loads((tmp_path / "tuning-paper.json").read_text())
    tuned["cells"]["sums/lr"]["curves"]["adam"]["best"]["lr"] = 0.0123
    (tmp_path / "mine.json").write_text(json.dumps(tuned))
    words = ("addition", "--scale", "paper", "--seeds", 1, "--tuning", tmp_path / "mine.json")
    adam, sgd = json.loads(figure(*words, *places))["rows"]
    assert (adam["lr"], adam["seeds"]) == (0.0123, 1)
    assert sgd == before[1], "two seeds, of which one was asked for"


def test_a_short_try_is_told_of_the_longer_runs_before_it(tiny, inline, tmp_path, monkeypatch):
    """A file of step sizes does not write to the committed results, unless it is asked to."""
    monkeypatch.chdir(tmp_path)
    words = ("addition", "--scale", "paper", "--seeds", 1, "--optimizers", "adam")
    assert "there is no experiments/paper in this folder" in figure(*words)
    kept = tmp_path / "experiments" / "paper" / "addition" / "sums.json"
    before, out = kept.read_bytes(), tmp_path / "runs" / "figures"
    tuned = json.loads((out / "tuning-paper.json").read_text())
    best = tuned["cells"]["sums/lr"]["curves"]["adam"]["best"]
    best["lr"] = 0.0123
    (tmp_path / "mine.json").write_text(json.dumps(tuned))
    figure(*words, "--tuning", "mine.json", "--budget-hours", 0)
    assert kept.read_bytes() == before
    assert not (out / "kept").exists(), "nothing was run"

    run = replace(ADAM.on(BASE), lr=0.0123, options={"betas": best["betas"]}).complete()
    with pytest.raises(KeyboardInterrupt):
        run_one(run, out / "runs" / folder_name(run), None, at_step(8))
    said = figure(*words, "--tuning", "mine.json", "--results", "experiments/paper", "--budget-hours", 0)
    assert "sums, adam: experiments/paper has longer runs with other settings" in " ".join(said.split())
    assert kept.read_bytes() == before
    figure(*words, "--tuning", "mine.json", "--budget-hours", 0)
    assert kept.read_bytes() == before
    assert (out / "kept" / "paper" / "addition" / "sums.json").exists()


def test_a_search_counts_for_longer_runs_too(tiny, inline, tmp_path, monkeypatch):
    """The committed trials are of the same size, whatever follows them."""
    monkeypatch.chdir(tmp_path)
    words = ("addition", "--scale", "paper", "--seeds", 1, "--optimizers", "adam", "--budget-hours", 0)
    assert "3 runs are left" in figure(*words)
    assert "one run is left" not in figure(*words, "--epochs", 3)
    figure(*words[:-2])
    assert "one run is left" in figure(*words, "--epochs", 3)
    assert "3 runs are left" in figure(*words, "--epochs", 0.5), "whose search is shorter too"


def test_pictures_name_the_panels_that_are_missing_and_how_much_shorter_a_run_is(begun, tmp_path):
    short = replace(PANEL, published_epochs=100.0)
    keep(short, [begun.curves[0].curve()], tmp_path / "sums", "", {})
    spec = replace(SPEC, panels=(short, replace(SPEC.panels[1], title="products")))
    assert draw_kept(spec, tmp_path, tmp_path / "sums", "paper", False, needed=True)
    svg = (tmp_path / "sums.svg").read_text()
    assert "not run: products" in svg
    assert "2 of the paper's 100 epochs" in svg
    assert replace(short, published_epochs=2.0).length_note == PANEL.length_note == ""


def test_what_is_left_of_a_budget_is_told_in_hours(tmp_path, monkeypatch, capsys):
    now, work = [0.0], known_work(tmp_path, replace(SPEC, panels=(replace(PANEL, variants=(ADAM,)),)))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def work_off(due, workers, data_dir, *, listener, **others):
        for step in (0, 2, 4):
            listener(due()[0], Progress(step, 16, None))
            now[0] += 240.0
        return Outcome(False)

    monkeypatch.setattr(working, "work_off", work_off)
    outcome = working.run_what_fits(work, 1, None, 1.0, quiet=True)
    assert outcome.left == "1 h 04 min", "two runs of 16 steps of two minutes"
    working.tell_end(outcome, work, quiet=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "2 runs are left, 1 h 04 min, and the same command continues" in said


def test_figures_of_several_sizes_do_not_share_a_folder(tmp_path):
    folders = [
        command.usual_folder(tmp_path, scale, epochs, tuning)
        for scale in ("quick", "paper")
        for epochs in (None, 0.02, 1.0)
        for tuning in (None, tmp_path / "mine.json")
    ]
    assert folders.count(command.KEPT) == 1
    assert len(set(folders)) == 7


def test_a_file_of_step_sizes_counts_at_any_size_and_the_rest_is_searched(tmp_path):
    quick = tuned_by(packaged("quick"), strict=False)
    panels = figure_spec("lm", "paper").panels
    found = {(panel.cell, v.name): quick(panel, v) for panel in panels for v in panel.variants}
    assert {name for (_, name), run in found.items() if run is None} <= {"adaqn-default", "soap"}
    run = found["char-lm/dickens/tanh", "adagrad"]
    assert run is not None
    assert run.epochs == 100.0
    assert quick(figure_spec("mnist", "paper").panels[0], PLAIN["adam"]) is not None, "found by another search"
    packaged_only = tuned_by(packaged("quick"), strict=False, any_size=False)
    assert packaged_only(panels[0], PLAIN["adam"]) is None, "found on shorter runs"


def test_a_view_of_some_curves_leaves_the_command_that_made_all(tiny, inline, tmp_path):
    words = ("--scale", "paper", "--seeds", 1, "--out", tmp_path, "--results", tmp_path / "kept")
    kept = tmp_path / "kept" / "addition" / "sums.json"
    figure("addition", *words)
    assert json.loads(kept.read_text())["command"] == "adaqn figure addition --scale paper --seeds 1"
    figure("addition", *words, "--optimizers", "adam")
    whole = "adaqn figure addition --scale paper --seeds 1"
    assert json.loads(kept.read_text())["command"] == whole
    more = ["--scale", "paper", "--seeds", 2, *words[4:], "--optimizers", "adam"]
    for _ in range(2):
        figure("addition", *more)
        other = "adaqn figure addition --scale paper --optimizers adam --seeds 2"
        assert json.loads(kept.read_text())["command"] == f"{whole}; {other}", "it takes both"


def test_ctrl_c_draws_what_there_is(tiny, inline, tmp_path, monkeypatch):
    words = ["figure", "addition", "--scale", "paper", "--out", str(tmp_path), "--results", str(tmp_path / "kept")]
    real, asked = command.FigureWork.due, []

    def interrupted(work):
        asked.append(1)
        if len(list(tmp_path.glob("runs/*/result.json"))) > 5:
            raise KeyboardInterrupt
        return real(work)

    monkeypatch.setattr(command.FigureWork, "due", interrupted)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    rows = json.loads((tmp_path / "addition-paper.json").read_text())
    assert any("of 3 seeds" in row["missing"] for row in rows)


def test_the_family_with_methods_of_every_kind(inline, tmp_path, monkeypatch):
    """By steps, by batches through the model and by seconds; slow methods have fewer points."""
    monkeypatch.setattr(specs, "FAMILY", ("adam", "olbfgs", "sfo", "hf", "kfac", "adaqn-paper"))
    monkeypatch.setattr(tune, "MOST_IN_TIME", 2)
    words = ("family", "--panel", "addition", "--epochs", 0.02, "--seeds", 1, "--out", tmp_path, "--json")
    rows = {row["curve"]: row for row in json.loads(figure(*words))["rows"]}
    assert len(rows) == 6
    steps = rows["Adam"]["steps"]
    assert rows["Adam"]["passes"]["mean"] == steps
    assert rows["oLBFGS"]["passes"]["mean"] == 2 * steps, "two gradients of each batch"
    assert rows["Hessian-Free"]["passes"]["mean"] > 3 * steps
    assert (tmp_path / "family-quick-part-addition.png").stat().st_size > 10_000, "a picture of every panel"
