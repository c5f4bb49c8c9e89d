"""Maps for the report: a solution, and what the best network of a panel makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adaqn.experiments.errors import UserError
from adaqn.experiments.figures.pinn import found_solution
from adaqn.experiments.physics.equations import EQUATIONS, solution_of
from adaqn.experiments.results.groups import Group
from adaqn.experiments.training.folder import Finished

MOST = 64
"""Points of a map in one direction: the page holds every number."""


def maps(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Of the run with the smallest error, where the panel is an equation and its checkpoint is still there."""
    problem = groups[0].config.problem
    if problem not in EQUATIONS:
        return None
    runs = [(group, run) for group in groups for run in group.runs if np.isfinite(_error(run))]
    if not runs:
        return None
    group, best = min(runs, key=lambda pair: _error(pair[1]))
    try:
        found = found_solution(best)
    except UserError:
        return None  # charts without maps are better than no page
    solution = solution_of(problem)
    rows, columns = (slice(None, None, -(-count // MOST)) for count in found.shape)
    exact = solution.values.numpy()
    return {
        "axes": EQUATIONS[problem].axes,
        "x": _digits(solution.x.numpy()[columns]),
        "y": _digits(solution.y.numpy()[rows]),
        "exact": _digits(exact[rows, columns]),
        "found": _digits(found[rows, columns]),
        "error": _digits(np.abs(found - exact)[rows, columns]),
        "name": group.name,
        "relative": best.result["final"]["test_error"],
    }


def _error(run: Finished) -> float:
    return float(run.result["final"].get("test_error", np.nan))


def _digits(values: Any) -> Any:
    """Four of them are enough for a picture."""
    return [_digits(row) for row in values] if np.ndim(values) > 1 else [float(f"{value:.4g}") for value in values]
