"""Figures over step sizes are drawn from their table."""

import json
import math
from itertools import combinations

import matplotlib.pyplot as plt
import pytest
from laboratory import command, refused

from adaqn.experiments.figures import sweep
from adaqn.experiments.figures.specs import figure_spec

SPEC = figure_spec("robustness", "quick")
ENDS = (".png", ".svg", "-phone.svg")


def spread(value):
    return {"mean": value, "low": 0.9 * value, "high": 1.1 * value}


@pytest.fixture
def rows():
    """Four methods at three step sizes; the largest makes one diverge, and another blow up."""
    common = {"options": {}, "seeds": 3, "steps": 9, "unit": "nats", "seconds": 1.0, "start": spread(4.0)}
    made = []
    for panel in SPEC.panels:
        for place, variant in enumerate(panel.variants):
            for lr, loss in ((0.1, (3.0, math.nan, 1e9, 2.9)[place]), (0.001, 3.0), (0.01, 2.0)):
                losses = {name: spread(loss) for name in ("test_loss", "valid_loss", "averaged_valid_loss")}
                made.append({**common, **losses, "panel": panel.title, "curve": variant.label, "lr": lr})
    return made


@pytest.fixture
def table(rows, tmp_path):
    text = json.dumps(rows).replace("NaN", "null")
    path = tmp_path / "robustness-quick.json"
    path.write_text(text)
    return path


def test_a_table_is_enough(table):
    before = table.read_bytes()
    done = command("figure", "robustness", "--redraw", "--out", table.parent)
    assert done.exit_code == 0, done.output
    assert all((table.parent / f"robustness-quick{end}").stat().st_size > 10_000 for end in ENDS)
    assert "prefers-color-scheme: dark" in (table.parent / "robustness-quick-phone.svg").read_text()
    assert table.read_bytes() == before
    assert command("figure", "all", "--redraw", "--out", table.parent).exit_code == 0


def test_a_damaged_table_or_none_is_said_to_be_so(table):
    words = ("figure", "robustness", "--redraw", "--out", table.parent)
    table.write_text(json.dumps([{"panel": "Dickens, tanh"}]))
    assert "robustness-quick.json is damaged" in refused(*words)
    table.unlink()
    assert "there are no results of robustness" in refused(*words)


@pytest.mark.parametrize("phone", [False, True])
def test_a_run_that_blew_up_leaves_the_picture_and_no_names_overlap(rows, phone):
    figure = sweep._drawing(SPEC, rows, "one seed", phone=phone)
    figure.canvas.draw()
    for axes in figure.axes:
        assert 4.0 < axes.get_ylim()[1] < 5.0
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == 4
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    plt.close(figure)


def test_what_is_not_there_is_said(rows):
    figure = sweep._drawing(SPEC, [row for row in rows if row["curve"] != "SOAP"], "", phone=False)
    assert all("SOAP: not finished" in [text.get_text() for text in axes.texts] for axes in figure.axes)
    plt.close(figure)
