"""Pictures: names beside the ends of their curves, a dark mode, and a size for phones."""

import math
from itertools import combinations
from pathlib import Path

import pytest

from adaqn.experiments.comparison import plots
from adaqn.experiments.comparison.dark import DARK, PAPER
from adaqn.experiments.comparison.labels import CHIEF, chief, label_ends, spread_out
from adaqn.experiments.comparison.look import PALETTE, Line, colour
from adaqn.experiments.comparison.panels import Curve, Panel, View, as_it_comes
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import Finished


def line(label, *values, **more):
    return Line(label, PALETTE[0], list(range(len(values))), values, values, values, **more)


@pytest.fixture
def drawn():
    """Ten curves, most of which end at nearly the same height; one has left the picture."""
    figure, axes = plots.panels(plots.DESKTOP, 1, 2)
    lines = [line(f"method {i}", 4.0, 1.0 + 1e-3 * i, minor=i > 3) for i in range(8)]
    lines += [line("slow", 4.0, 3.0), line("lost", 4.0, math.nan)]
    plots.draw(axes[0][0], lines, legend=False)
    plots.frame(axes[0][0], lines)
    label_ends(axes[0][0], lines)
    figure.canvas.draw()
    yield figure, axes[0][0]
    plots.plt.close(figure)


def test_names_stand_beside_the_axes_and_never_over_each_other(drawn):
    figure, axes = drawn
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 10
    assert axes.get_legend() is None
    assert all(box.x0 > axes.get_window_extent().x1 for box in boxes)
    assert all(box.x1 < figure.axes[1].get_tightbbox().x0 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_names_have_the_order_of_the_ends(drawn):
    _, axes = drawn
    heights = {text.get_text(): text.get_window_extent().y0 for text in axes.texts}
    assert heights["method 0"] < heights["method 7"] < heights["slow"] < heights["lost"]


def test_heights_that_are_far_apart_stay_what_they_are():
    assert spread_out([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]


def test_the_chief_curves_are_ours_those_that_everybody_knows_and_the_best():
    ranked = ["muon", "soap", "shampoo", "adaqn-kronecker", "adaqn-modern", "nag", "adam"]
    assert chief(ranked, str) == ["muon", "soap", "adaqn-kronecker", "adam"]
    assert len(chief(ranked[:2], str)) == 2
    assert CHIEF == 4


def test_a_picture_has_a_rule_for_each_of_its_colours_on_a_dark_page(drawn, tmp_path):
    figure, _ = drawn
    [path] = plots.save(figure, tmp_path / "picture", ("svg",))
    text = path.read_text(encoding="utf-8")
    rules = text[text.index("@media (prefers-color-scheme: dark)") : text.index("</style>")]
    assert f'[style*="fill: {PAPER}"]{{fill: {DARK[PAPER]} !important}}' in rules
    assert f'[style*="stroke: {PALETTE[0].lower()}"]' in rules


def test_marks_and_ranges_of_black_curves_turn_light_too(tmp_path):
    """Matplotlib leaves out the fill where it is black."""
    figure, axes = plots.panels(plots.DESKTOP, 1, 1)
    plots.draw(axes[0][0], [Line("black", "#000000", [0, 1], [1, 2], [0, 1], [2, 3], "-o")], legend=False)
    [path] = plots.save(figure, tmp_path / "picture", ("svg",))
    text = path.read_text(encoding="utf-8")
    drawing = text[text.index("</style>") :]
    assert 'style="fill-opacity: 0.15"' in drawing
    assert 'style="stroke: #000000; stroke-linejoin' in drawing or 'style="stroke: #000000"' in drawing
    assert text.count("{fill: #dfe2e8 !important}") == 4, "ink, black, and these two"


def test_a_curve_that_ends_early_is_led_to_its_name():
    figure, axes = plots.panels(plots.DESKTOP, 1, 1)
    lines = [line("long", 4.0, 2.0, 1.0), line("short", 4.0, 3.0)]
    plots.draw(axes[0][0], lines, legend=False)
    label_ends(axes[0][0], lines)
    [leader] = [drawn for drawn in axes[0][0].lines if drawn.get_linestyle() == ":"]
    assert 0.4 < leader.get_xdata()[0] < leader.get_xdata()[1] == 1.0
    plots.plt.close(figure)


def test_on_a_phone_panels_stand_below_each_other_with_the_same_heights():
    figure, axes = plots.panels(plots.PHONE, 2, 2)
    assert axes.shape == (2, 2)
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == 1
    axes[0][0].set_ylim(1.0, 2.0)
    assert axes[0][1].get_ylim() == (1.0, 2.0)
    assert axes[1][0].get_ylim() != (1.0, 2.0)
    plots.plt.close(figure)


def test_two_methods_of_a_panel_never_look_alike():
    """AdaQN and SFO have the same colour where they do not meet."""
    base = RunConfig(task="addition")
    panel = Panel("", base, tuple(as_it_comes(name) for name in ("adaqn", "sfo", "adam")))
    curves = []
    for variant in panel.variants:
        result = {"config": {"optimizer": variant.optimizer, "seed": 0}, "unit": "", "final": {"test_loss": 1.0}}
        metrics = [{"step": step, "epoch": step, "test_loss": 2.0 - step} for step in (0, 1)]
        curves.append(Curve(panel, variant, (Finished(Path(), result, metrics, 1.0),)))
    figure, axes = plots.panels(plots.DESKTOP, 1, 1)
    lines = plots.draw_panel(axes[0][0], curves, panel, View())
    assert colour("adaqn") == colour("sfo")
    assert len({(line.colour, line.style) for line in lines}) == 3
    plots.plt.close(figure)


def test_the_later_losses_of_a_long_run_fill_its_panel():
    """And a short one is shown from where most of the losses are, as ever."""
    whole = [4.0, 2.0, *(1.5 - 0.001 * i for i in range(99))]
    for values, most in ((whole, 1.6), ([4.0, 2.0, 1.5, 1.4], 3.0), ([9.0, 6.5, 6.48, 6.47], 6.55)):
        figure, axes = plots.panels(plots.DESKTOP, 1, 1)
        plots.frame(axes[0][0], [line("one", *values)], shown=plots.BEGUN, after=plots.SETTLED)
        assert values[-1] < axes[0][0].get_ylim()[1] < most
        plots.plt.close(figure)


def test_a_few_jumps_of_a_long_run_leave_the_picture():
    """Its last value does not."""
    values = [4.0, 2.0, *(1.5 - 0.001 * i for i in range(99))]
    values[80] = 3.5
    for last, most in ((values[-1], 1.6), (1.9, 2.0)):
        figure, axes = plots.panels(plots.DESKTOP, 1, 1)
        drawn = line("one", *values[:-1], last)
        plots.frame(axes[0][0], [drawn], shown=plots.BEGUN, after=plots.SETTLED, with_ends=True)
        assert last < axes[0][0].get_ylim()[1] < most
        plots.plt.close(figure)


def test_a_panel_without_a_curve_measures_nothing():
    panel = Panel("", RunConfig(task="addition"), (as_it_comes("adam"),))
    figure, axes = plots.panels(plots.DESKTOP, 1, 1)
    assert plots.draw_panel(axes[0][0], [Curve(panel, panel.variants[0], (), "not run")], panel, View()) == []
    assert [text.get_text() for text in axes[0][0].texts] == ["Adam: not run"]
    assert len(axes[0][0].get_xticks()) == len(axes[0][0].get_yticks()) == 0
    plots.plt.close(figure)
