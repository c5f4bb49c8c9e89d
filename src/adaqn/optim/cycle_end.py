"""The end of a cycle, part by part: y, the pair, the anchor, and the length of the next cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaqn.core.cycle import cosine, next_cycle_length, signal_share
from adaqn.core.growth import after_accepted
from adaqn.core.history import Draft
from adaqn.core.outcome import Outcome
from adaqn.core.pairs import is_usable
from adaqn.core.products import on_host, round_to
from adaqn.optim.descent import BetweenStepSizes, StepSizes
from adaqn.optim.judge import Verdict
from adaqn.optim.state import State


class Products(NamedTuple):
    """s·s, s·y and y·y; ``None`` where no pair was formed."""

    ss: float | None = None
    sy: float | None = None
    yy: float | None = None
    cosine: float | None = None
    """Of the angle between s and that of the pair before it, where both are stored."""


NO_PAIR = Products()


def curvature_along(state: State, s: Tensor, candidate: Tensor) -> Tensor:
    """y, written over the cycle's sum, which is no longer needed."""
    average, curvature, processes = state.average, state.curvature, state.flat.processes
    with sum_kept(state, candidate):
        if curvature.needs_model:
            with processes.together("the curvature"):
                y = curvature.product(s, candidate, out=average.total)
            y = processes.average_(y)  # each process has batches of its own
        else:
            y = curvature.product(s, candidate, out=average.total)
    return y.neg_() if state.method.maximize and curvature.signed else y


@contextmanager
def sum_kept(state: State, candidate: Tensor) -> Iterator[None]:
    """The cycle's sum, which y is written over, is put back if the user's model raises."""
    try:
        yield
    except BaseException:
        if state.method.pair_every_step:
            state.begin_cycle()  # the next step has an anchor of its own
        else:
            torch.mul(candidate, state.tally.finite, out=state.average.total)
        raise


class Offer(NamedTuple):
    """A pair that may be stored, and what the host knows of it."""

    draft: Draft
    ss: float
    yy: float
    before: float
    """s₋·s₋ of the newest pair in memory, and s₋·s; zeros where nobody asks."""
    across: float
    sy: float
    solvable: float


def offer(
    state: State, s: Tensor, y: Tensor, sizes: StepSizes, unread: Sequence[Tensor] = ()
) -> tuple[Offer, list[Tensor]]:
    """All that the host must know of the pair, and of what else it has not read, in one read; nothing is stored."""
    method, pairs, settle = state.method, state.pairs, state.flat.settle
    between = BetweenStepSizes(state.h0, sizes)
    if method.scale == "stored":
        between.to_own_scale(s, y)
    if method.repair is not None:
        h0: Any = between if method.scale == "current" else state.h0
        method.repair(s, y, h0, settle)
    for vector, rows in ((s, pairs.S), (y, pairs.Y)):
        round_to(rows.dtype, vector)  # what is stored is what must pass the test
    squares = torch.stack([s.dot(s), y.dot(y)]).double()
    beside = torch.zeros_like(squares) if method.cycle_bounds is None else pairs.beside_newest(s)
    found = settle(torch.cat([squares, beside, pairs.products_with(s, y)]))
    draft = pairs.draft(s, y, found[4:])
    told, *read = on_host(torch.cat([found[:4], draft.told]), *unread)
    return Offer(draft, *told.tolist()), read


def store(state: State, found: Offer) -> tuple[Outcome, Products]:
    """Store the pair if its curvature is good enough (l. 19)."""
    method, pairs, ss, sy, yy = state.method, state.pairs, found.ss, found.sy, found.yy
    if not (is_usable(sy, yy) and method.curvature_test(ss, sy, yy, method.curvature_eps)):  # D14
        return Outcome.SKIPPED, Products(ss, sy, yy)
    alone = not found.solvable and len(pairs) > 0
    angle = None if alone else cosine(found.before, found.across, ss)
    pairs.store(found.draft, alone=alone)  # l. 20
    state.scaling.on_stored(sy, yy)
    return Outcome.STORED, Products(ss, sy, yy, angle)


def accept(state: State, verdict: Verdict, outcome: Outcome, candidate: Tensor, *, fell: bool | None) -> bool:
    """L. 21 and 24: the cycle is kept; does its average become the anchor? Not if its pair was skipped (D6).

    ``fell`` says whether the monitored loss did.
    """
    c = state.counters
    verdict.apply_to(c, state.best)
    c.started = 1
    c.step_multiplier = after_accepted(c.step_multiplier, fell, state.method.judge.growth)  # D11, D37
    c.skips_in_row = c.skips_in_row + 1 if outcome is Outcome.SKIPPED else 0
    state.show_accepted(candidate)
    if outcome is Outcome.SKIPPED and c.skips_in_row != state.method.anchor_patience:
        return False
    state.anchor.copy_(candidate)
    c.skips_in_row = 0
    return True


def return_to_anchor(state: State, verdict: Verdict) -> None:
    """L. 13 and 14; D2: the anchor is copied, and the step counter goes on."""
    verdict.apply_to(state.counters, state.best)
    state.clear_history()
    if state.method.reset_scaling:  # D3
        state.scaling.reset()
    if state.method.reset_momentum and state.momentum is not None:
        state.momentum.reset()  # it points to where it went wrong
    state.set_weights(state.anchor)
    if state.accepted is not None and not state.method.averaging:
        state.accepted.copy_(state.anchor)
    state.counters.skips_in_row = state.counters.nonfinite_in_row = 0


def adapt_cycle_length(state: State, outcome: Outcome, cosine: float | None, momentum: float) -> None:
    """Where L adapts, the length of the next cycle."""
    bounds = state.method.cycle_bounds
    if bounds is None:
        return
    length = state.cycle_length
    share = signal_share(cosine, length, momentum) if cosine is not None else None
    state.counters.cycle_length = next_cycle_length(length, outcome, share, *bounds)
