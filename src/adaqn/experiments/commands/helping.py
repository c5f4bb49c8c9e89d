"""``--help``: examples below every command, and flags that do not look as if they took a value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

EXAMPLES: dict[str, tuple[str, ...]] = {
    "train": (
        "adaqn train --data dickens --model lstm --out runs/dickens",
        "adaqn train --resume --out runs/dickens",
        "adaqn train --optimizer adam --lr 0.004 --steps 500",
        "adaqn train --task pinn --problem burgers --optimizer adaqn-lbfgs",
    ),
    "compare": (
        "adaqn compare --optimizers adaqn,adam:0.004,soap --seeds 3",
        "adaqn compare --task mlp --epochs 2 --out runs/mlp",
    ),
    "tune": (
        "adaqn tune --optimizers adaqn,adam --budget 20",
        "adaqn tune --optimizers adam,soap --search lr --budget 5 --steps 500",
    ),
    "figure": (
        "adaqn figure lm",
        "adaqn figure lm --scale paper --panel Dickens --plan",
        "adaqn figure lm --scale paper --panel Dickens --budget-hours 8",
        "adaqn figure pinn --problem burgers --seeds 1",
    ),
    "study": (
        "adaqn study --plan",
        "adaqn study --budget-hours 8",
        "adaqn study --task nietzsche-tanh --method adam",
        "adaqn study --page docs/results.md",
    ),
    "explain": ("adaqn explain runs/dickens",),
    "sample": ('adaqn sample runs/dickens --prompt "It was" --count 200 --temperature 0.8',),
    "report": ("adaqn report runs", "adaqn report runs --out report.html"),
    "doctor": ("adaqn doctor", "adaqn doctor char-lm", "adaqn doctor mymodule:make_model --threads 4"),
    "data": ("adaqn data list", "adaqn data download ptb", "adaqn data verify"),
    "data list": ("adaqn data list", "adaqn data list --json"),
    "data download": ("adaqn data download", "adaqn data download dickens nietzsche"),
    "data verify": ("adaqn data verify --data-dir my-data",),
    "": ("adaqn compare", "adaqn doctor char-lm", "adaqn data list"),
}
"""By command; that of no command is the whole program's."""


def examples(command: str) -> str:
    """As typer wants what stands below: an empty line between two lines."""
    return "\n\n".join(["Examples:", *EXAMPLES[command]])


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""  # typer writes <bool> beside them
    return params


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))
