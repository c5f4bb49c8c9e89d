"""The notebook runs from top to bottom, and ends with what it promises."""

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

PATH = Path(__file__).parent.parent / "examples" / "train_explain_plot.ipynb"


def cells(kind):
    notebook = json.loads(PATH.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.fixture
def namespace():
    plt.switch_backend("Agg")
    yield {}
    plt.close("all")


@pytest.mark.parametrize("steps", [120, pytest.param(240, marks=pytest.mark.slow)])
def test_the_notebook_trains_explains_and_plots(steps, namespace, capsys):
    """With half of its steps, and as it is."""
    sources = cells("code")
    assert sum("STEPS = 240\n" in source for source in sources) == 1
    for source in sources:
        exec(compile(source.replace("STEPS = 240\n", f"STEPS = {steps}\n"), PATH.name, "exec"), namespace)
    assert namespace["opt"].stats.steps == steps + 1
    assert namespace["opt"].defaults["lr"] == 0.004, "the run that is explained has the default step size"
    said = capsys.readouterr().out
    assert str(namespace["opt"].explain()) in said
    for name, curve in namespace["curves"].items():
        losses = [loss for _, _, loss in curve]
        assert all(map(math.isfinite, losses)), name
        assert losses[-1] < losses[0] - 0.5, name
    assert [len(axes.lines) for axes in namespace["figure"].axes] == [4, 4]


def test_what_the_notebook_links_to_is_there():
    targets = [part.split(")")[0] for text in cells("markdown") for part in text.split("](")[1:]]
    assert targets
    assert [target for target in targets if not (PATH.parent / target).exists()] == []
