"""What each figure shows: its panels, their curves, and the sizes of the runs at each scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adaqn.experiments.comparison.panels import Comparison, Panel, Sweep, Variant, View
from adaqn.experiments.errors import UserError
from adaqn.experiments.training.config import RunConfig

SCALES = ("quick", "paper")
RIVALS = ("adaqn", "adagrad", "adam")
AS_PRINTED = "adaqn-paper"


PLAIN = {
    "adaqn": Variant("adaqn", AS_PRINTED, "adaQN"),
    "adagrad": Variant("adagrad", "adagrad", "Adagrad"),
    "adam": Variant("adam", "adam", "Adam"),
}
# The claims of the paper's sections 3.2 to 3.4, one change each.
ABLATION = (
    Variant("adaqn", AS_PRINTED, "as in the paper"),
    Variant("barzilai-borwein", AS_PRINTED, "Barzilai-Borwein H0", (("scaling", "barzilai_borwein"),)),
    Variant("empirical-fisher", AS_PRINTED, "empirical Fisher", (("curvature", "empirical_fisher"),)),
    Variant("moving-anchor", AS_PRINTED, "anchor moves on a skip", (("anchor_patience", 1),)),
    Variant("no-rejection", AS_PRINTED, "without rejection", (("acceptance", "none"),)),
)
CYCLE_LENGTHS = (2, 5, 10, 20)
SENSITIVITY = (
    *(
        Variant(f"L={length}", AS_PRINTED, f"adaQN, L = {length}", (("cycle_length", length),))
        for length in CYCLE_LENGTHS
    ),
    PLAIN["adagrad"],
    PLAIN["adam"],
)

ROBUSTNESS = (
    *(Variant(name, name, label) for name, label in (("adaqn", "adaQN"), ("adam", "Adam"), ("soap", "SOAP"))),
    Variant("no-rejection", "adaqn", "adaQN without rejection", (("acceptance", "none"),)),
)


def sizes(task: str, scale: str) -> dict[str, Any]:
    """How long, how wide, how much data. ``paper`` is what the paper says, and a task's default where it is silent."""
    quick: dict[str, dict[str, Any]] = {
        "char-lm": {"limit": 225_000, "epochs": 5.0, "evaluations": 2},
        "word-lm": {
            "limit": 120_000, "vocabulary": 1_000, "hidden": 100, "batch_size": 16, "epochs": 4.0, "evaluations": 2,
        },
        "pixel-mnist": {"side": 14, "steps": 1_000, "evaluations": 8},
        "addition": {"length": 50, "steps": 3_000},
    }  # fmt: skip
    paper: dict[str, dict[str, Any]] = {
        "char-lm": {"epochs": 100.0},
        "word-lm": {"epochs": 100.0},
        "pixel-mnist": {"side": 28, "epochs": 100.0, "batch_size": 16},
        "addition": {"length": 100, "epochs": 100.0},
    }
    return {"quick": quick, "paper": paper}[scale][task]


def _panel(title: str, task: str, data: str, model: str, scale: str, **changes: Any) -> Panel:
    base = replace(RunConfig(task=task, data=data, model=model), **sizes(task, scale))
    return replace(Panel(title, base, tuple(PLAIN[name] for name in RIVALS)), **changes)


def _texts(model: str, scale: str) -> tuple[Panel, ...]:
    name = {"tanh": "tanh", "relu": "ReLU", "lstm": "LSTM"}[model]
    return (
        _panel(f"Dickens, {name}", "char-lm", "dickens", model, scale),
        _panel(f"Nietzsche, {name}", "char-lm", "nietzsche", model, scale),
        _panel(f"Penn Treebank, {name}", "word-lm", "ptb", model, scale),
    )


def _shorter(panel: Panel, scale: str) -> Panel:
    """A sweep has several times as many runs as the other figures: at quick scale, half as long each."""
    return replace(panel, base=replace(panel.base, epochs=2.5)) if scale == "quick" else panel


def figure_spec(name: str, scale: str) -> Comparison:
    """The figure of that name at that scale."""
    if scale not in SCALES:
        raise UserError(f"no scale called {scale!r}: give one of {', '.join(SCALES)}")
    language = (*_texts("tanh", scale), *_texts("relu", scale))
    if name == "lm":
        return Comparison(name, "Language models: test loss", language)
    if name == "memory":
        only = tuple(replace(panel, variants=(PLAIN["adaqn"],)) for panel in language)
        return Comparison(name, "Average L-BFGS memory per epoch", only, (View("average_memory"),))
    if name == "lstm":
        return Comparison(name, "LSTMs: test loss", _texts("lstm", scale))
    if name == "mnist":
        panel = _panel("MNIST, one pixel a step", "pixel-mnist", "mnist", "tanh", scale)
        return Comparison(name, "MNIST by pixels", (panel,), (View("test_loss"), View("test_accuracy")), columns=2)
    if name == "addition":
        panel = _panel("the addition problem", "addition", "embedded", "tanh", scale)
        return Comparison(name, "The addition problem: test loss", (panel,), columns=1)
    if name == "ablation":
        changes = {"variants": ABLATION, "search": "lr", "budget": 6}
        panels = (
            _panel("Dickens, tanh", "char-lm", "dickens", "tanh", scale, **changes),
            _panel("Dickens, LSTM", "char-lm", "dickens", "lstm", scale, **changes),
        )
        return Comparison(name, "What each part of adaQN does: test loss", panels, columns=2)
    if name == "sensitivity":
        panel = _panel("Dickens, tanh", "char-lm", "dickens", "tanh", scale, variants=SENSITIVITY, search="lr")
        title = "Step size and cycle length: validation loss at the end"
        return Comparison(name, title, (_shorter(panel, scale),), columns=1, sweep=Sweep(6, 1.0))
    if name == "robustness":
        panels = (
            _panel("Dickens, tanh", "char-lm", "dickens", "tanh", scale, variants=ROBUSTNESS),
            _panel("Nietzsche, LSTM", "char-lm", "nietzsche", "lstm", scale, variants=ROBUSTNESS),
        )
        title = "Three decades of step sizes: validation loss at the end"
        shorter = tuple(_shorter(panel, scale) for panel in panels)
        return Comparison(name, title, shorter, columns=2, sweep=Sweep(7, 1.5))
    raise UserError(f"no figure called {name!r}: give one of {', '.join(FIGURES)}")


FIGURES = ("lm", "memory", "mnist", "lstm", "addition", "ablation", "sensitivity", "robustness")
