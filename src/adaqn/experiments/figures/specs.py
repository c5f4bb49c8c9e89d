"""What each figure shows: its panels, their curves, and the sizes of the runs at each scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adaqn.experiments.comparison.panels import Comparison, Panel, Sweep, Variant, View, as_it_comes
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry
from adaqn.experiments.search.points import IN_TIME
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
    *(Variant(name, name, label) for name, label in (("adaqn", "AdaQN"), ("adam", "Adam"), ("soap", "SOAP"))),
    Variant("no-rejection", "adaqn", "AdaQN without rejection", (("acceptance", "none"),)),
)


AVERAGING = 8.0
"""c of the growing average, adaQN's own."""
LATER = (
    Variant("adaqn-default", "adaqn", "AdaQN (default)", lr=entry("adaqn").lr, rank=1, most_seeds=1, at_average=True),
    Variant("soap", "soap", "SOAP", rank=1, most_seeds=1, settings=(("averaging", AVERAGING),), at_average=True),
)
"""Beside the paper's three at its own scale, both at an average. AdaQN as it comes: it is meant to need no search."""
ONE_SIDED = (("max_precondition_dim", 1_000),)
"""Of SOAP on ten thousand words, whose matrices of that side take minutes each; AdaQN leaves them out too."""
FAMILY = (
    "momentum", "nag", "adagrad", "rmsprop", "adam", "olbfgs", "res", "sdlbfgs", "sqn", "sfo", "hf", "kfac", "lbfgs",
    "adaqn-paper", "adaqn", "soap",
)  # fmt: skip
"""Every method that the paper names, and today's best."""
FEWER_STEPS = {"hf": 0.1}
"""Of the steps of the others: with a tenth of them Hessian-Free still evaluates several times as many gradients."""
FAMILY_BUDGET = 6
"""Runs of Adam whose time each method has for its search."""
LENGTHS = (50, 100, 200)
"""Of the addition problem at the paper's scale: where does it stop being learnable?"""


PUBLISHED_EPOCHS = 100.0
"""Of the paper's language models."""
WORD_EPOCHS = 5.0
"""Of a word model at the paper's scale: two to three hours of one core for three methods and their searches."""


def sizes(task: str, scale: str) -> dict[str, Any]:
    """How long, how wide, how much data. ``paper`` is what the paper says, and a task's default where it is silent.

    It is silent on the length of MNIST by pixels: ten epochs in batches of 16, eighty times the 400 steps after which
    Adam's fate was not decided, so that three seeds are possible. Words have fewer epochs than in the paper.
    """
    quick: dict[str, dict[str, Any]] = {
        "char-lm": {"limit": 225_000, "epochs": 5.0, "evaluations": 2},
        "word-lm": {
            "limit": 120_000, "vocabulary": 1_000, "hidden": 100, "batch_size": 16, "epochs": 4.0, "evaluations": 2,
        },
        "pixel-mnist": {"side": 14, "steps": 1_000, "evaluations": 8},
        "addition": {"length": 50, "steps": 3_000},
    }  # fmt: skip
    paper: dict[str, dict[str, Any]] = {
        "char-lm": {"epochs": PUBLISHED_EPOCHS},
        "word-lm": {"epochs": WORD_EPOCHS},
        "pixel-mnist": {"side": 28, "epochs": 10.0, "batch_size": 16, "evaluations": 4},
        "addition": {"length": 100, "epochs": 100.0},
    }
    return {"quick": quick, "paper": paper}[scale][task]


SEARCHED = {"char-lm": 5.0, "word-lm": 0.25, "pixel-mnist": 0.5, "addition": 20.0}
"""Full epochs of each run of a search at the paper's scale."""
SEARCH = {"word-lm": "staged-ladder", "pixel-mnist": "staged-ladder"}
"""Where at quick scale the best step sizes were the smallest or largest of their rows."""


def _panel(title: str, task: str, data: str, model: str, scale: str, **changes: Any) -> Panel:
    base = replace(RunConfig(task=task, data=data, model=model), **sizes(task, scale))
    variants = tuple(PLAIN[name] for name in RIVALS)
    if scale == "quick":
        return replace(Panel(title, base, variants), **changes)
    searched = replace(base, epochs=SEARCHED[task], evaluations=1)
    panel = Panel(title, base, (*variants, *LATER), search=SEARCH.get(task, "staged"), searched=searched)
    return replace(panel, **changes)


def _texts(model: str, scale: str) -> tuple[Panel, ...]:
    name = {"tanh": "tanh", "relu": "ReLU", "lstm": "LSTM"}[model]
    words = _panel(f"Penn Treebank, {name}", "word-lm", "ptb", model, scale)
    if scale == "paper":  # hours: one seed, after all that is quicker
        variants = (replace(v, options=ONE_SIDED) if v.optimizer == "soap" else v for v in words.variants)
        later = tuple(replace(v, rank=v.rank + 2, most_seeds=1) for v in variants)
        words = replace(words, variants=later, published_epochs=PUBLISHED_EPOCHS)
    return (
        _panel(f"Dickens, {name}", "char-lm", "dickens", model, scale),
        _panel(f"Nietzsche, {name}", "char-lm", "nietzsche", model, scale),
        words,
    )


def _addition(scale: str) -> tuple[Panel, ...]:
    if scale == "quick":
        return (_panel("the addition problem", "addition", "embedded", "tanh", scale),)
    panel = _panel("", "addition", "embedded", "tanh", scale)

    def of(length: int) -> Panel:
        base, searched = replace(panel.base, length=length), panel.searched
        assert searched is not None
        longer = {"base": base, "searched": replace(searched, length=length)}
        return replace(panel, title=f"addition, {length} steps", name=f"addition-{length}", **longer)  # type: ignore[arg-type]

    return tuple(of(length) for length in LENGTHS)


def _family() -> tuple[Panel, ...]:
    """All methods where each takes minutes; budgets in time, since a step of one takes as long as fifty of another."""
    variants = tuple(replace(as_it_comes(name), length=FEWER_STEPS.get(name, 1.0)) for name in FAMILY)
    digits = RunConfig(task="mlp", data="mnist", model="tanh", steps=1_500, evaluations=4)
    bases = {
        "Dickens, tanh": RunConfig(task="char-lm", data="dickens", model="tanh", **sizes("char-lm", "quick")),
        "MNIST, feed-forward": digits,
        "the addition problem": RunConfig(task="addition", **sizes("addition", "quick")),
    }
    return tuple(
        Panel(title, base, variants, search=IN_TIME, budget=FAMILY_BUDGET, name=f"family-{base.task}")
        for title, base in bases.items()
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
        return Comparison(name, "Language models: test loss", language, columns=2, downwards=True)
    if name == "memory":
        only = tuple(replace(p, variants=tuple(v for v in p.variants if v.name == "adaqn")) for p in language)
        view = View("average_memory")
        return Comparison(
            name, "Average L-BFGS memory per epoch", only, (view,), columns=2, downwards=True, runs_of="lm"
        )
    if name == "lstm":
        if scale == "quick":
            return Comparison(name, "LSTMs: test loss", _texts("lstm", scale), columns=2)
        title = "LSTMs: test loss at the lowest validation loss so far (thin: at the time)"
        return Comparison(name, title, _texts("lstm", scale), (View(so_far=True),), columns=2)
    if name == "mnist":
        panel = _panel("MNIST, one pixel a step", "pixel-mnist", "mnist", "tanh", scale)
        return Comparison(name, "MNIST by pixels", (panel,), (View("test_loss"), View("test_accuracy")), columns=2)
    if name == "addition":
        return Comparison(name, "The addition problem: test loss", _addition(scale), columns=2)
    if name == "family":
        views = tuple(View(against=against, wide=True) for against in ("step", "passes", "seconds"))
        return Comparison(name, "The whole family: test loss", _family(), views, columns=1, apart=True)
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
        title = "Three decades of step sizes: validation loss at the growing average, which all methods have here"
        shorter = tuple(_shorter(panel, scale) for panel in panels)
        averaged = tuple(
            replace(panel, base=replace(panel.base, averaging=AVERAGING), searched=None)  # all step sizes are drawn
            for panel in shorter
        )
        return Comparison(name, title, averaged, columns=2, sweep=Sweep(7, 1.5))
    raise UserError(f"no figure called {name!r}: give one of {', '.join((*FIGURES, 'pinn', 'noise'))}")


FIGURES = ("lm", "memory", "mnist", "lstm", "addition", "family", "ablation", "sensitivity", "robustness")
