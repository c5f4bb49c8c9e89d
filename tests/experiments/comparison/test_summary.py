"""Curves summed up over their seeds."""

from pathlib import Path

import pytest

from adaqn.experiments.comparison import plots
from adaqn.experiments.comparison.panels import Curve, Panel, View, as_it_comes
from adaqn.experiments.comparison.summary import stopped_early, summary_rows
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished

NAN = float("nan")


def run_of(*losses, seed=0):
    """(Validation, test) at each evaluation."""
    config = RunConfig(task="addition", optimizer="adam", lr=0.1, seed=seed).complete()
    metrics = [{"step": step, "valid_loss": valid, "test_loss": test} for step, (valid, test) in enumerate(losses)]
    result = {"config": config.told(), "steps": len(losses), "unit": "", "seconds": 1.0, "final": metrics[-1]}
    return Finished(Path(), result, metrics, 1.0)


def test_stopped_early_is_the_test_loss_at_the_lowest_validation_loss():
    assert stopped_early(run_of((4.0, 4.1), (1.0, 1.3), (2.0, 0.9))) == 1.3, "not the lowest test loss"
    assert stopped_early(run_of((4.0, 4.1), (NAN, 0.1), (None, 0.2))) == 4.1
    assert stopped_early(run_of((None, 1.0))) is None


def test_a_curve_of_the_best_so_far_ends_where_early_stopping_does():
    run = run_of((4.0, 4.1), (1.0, 1.3), (2.0, 0.9))
    for so_far, losses in ((True, [4.1, 1.3, 1.3]), (False, [4.1, 1.3, 0.9])):
        drawn = plots.line_of([run], as_it_comes("adam"), View(against="step", so_far=so_far))
        assert drawn.mean == losses


def test_losses_that_jump_are_thin_lines_behind_the_best_so_far():
    panel = Panel("sums", RunConfig(task="addition"), (as_it_comes("adam"),))
    curve = Curve(panel, panel.variants[0], (run_of((4.0, 4.1), (1.0, 1.3), (2.0, 9.9)),))
    _, axes = plots.plt.subplots()
    [line] = plots.draw_panel(axes, [curve], panel, View(against="step", so_far=True))
    assert line.label.endswith("1.300")
    drawn = {line.get_linewidth(): list(line.get_ydata()) for line in axes.lines}
    assert drawn == {0.9: [4.1, 1.3, 9.9], 1.8: [4.1, 1.3, 1.3]}
    assert axes.get_ylim()[1] < 5.0, "a jump leaves the picture"
    plots.plt.close()


def test_rows_have_the_loss_at_the_end_and_where_one_would_have_stopped():
    panel = Panel("", RunConfig(task="addition"), (as_it_comes("adam"),))
    runs = (run_of((4.0, 4.0), (1.0, 1.5), (2.0, 2.5)), run_of((4.0, 4.0), (3.0, 3.5), (2.0, 2.5), seed=1))
    [row] = summary_rows([Curve(panel, panel.variants[0], runs)])
    assert row["test_loss"]["mean"] == pytest.approx(2.5)
    assert row["stopped_test_loss"] == {"mean": 2.0, "low": 1.5, "high": 2.5}
    [row] = summary_rows([Curve(panel, panel.variants[0], (run_of((None, 1.0)),))])
    assert "stopped_test_loss" not in row
