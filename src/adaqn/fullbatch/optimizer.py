"""What the optimizers for whole gradients share: param groups, state, saving, telling."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would load the compiler on import
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from adaqn.core.checks import at_least_one, not_nan, step_size
from adaqn.core.line_search import LineSearch
from adaqn.core.line_search_names import LINE_SEARCHES
from adaqn.core.scaling import Scaling
from adaqn.core.units import readable_size
from adaqn.fullbatch.closure import NO_GRADIENT, UNSEEN, Closure, Evaluations, Sample, takes_seed
from adaqn.fullbatch.events import Counters, Iteration, WholeStats
from adaqn.fullbatch.limited import LimitedMemory, own_names
from adaqn.fullbatch.line import Objective
from adaqn.fullbatch.method import WholeMethod
from adaqn.fullbatch.minimization import BEYOND, BUDGET, NOT_FINITE, Limits, Minimization
from adaqn.optim.events import Notices, warn
from adaqn.optim.torch_arguments import OF_WHOLE, advice, check_torchs_in_group, is_torchs
from adaqn.parameters.flat import check_one_device, trained
from adaqn.parameters.group_keys import check_misspelt
from adaqn.parameters.loading import Entry, entries_by_parameter, load_state
from adaqn.parameters.saved import check_entries, check_restored, foreign, show, with_plain_numbers

if TYPE_CHECKING:
    from adaqn.explain.explanation import Explanation

RECENT = 40
"""Iterations that are remembered one by one, for the explanation."""
UNKNOWN_LOSS = (NOT_FINITE, BEYOND, NO_GRADIENT)
"""Ends of a step that are warned of: nothing is known of the weights where it ended."""
OF_ALL = ("max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn")
NOT_IN_GROUPS = ("scaling", "damping", "noise", "maximize", "storage", "update", "on_cycle", "process_group")
"""Arguments that the groups do not even have."""


class WholeGradient(Optimizer):
    """A loop of directions and line searches; what a method is made of stands in its WholeMethod."""

    needs: ClassVar[str] = "step(closure): the closure calls zero_grad() and backward(), returns the loss, is run often"
    _running: Minimization | None = None
    """The step that is under way."""
    _telling = False
    """Is ``on_cycle`` being called?"""

    def __init__(self, params: ParamsT, method: WholeMethod, defaults: dict[str, Any]) -> None:
        self._method = method
        self._memory: LimitedMemory | None = None
        self._sample = Sample()
        self._notices = Notices()
        self._recent: deque[Iteration] = deque(maxlen=RECENT)
        self._reason = "no step was made yet"
        self._at_work = False
        super().__init__(params, defaults)

    # ------------------------------------------------------------------ the step

    @_disable_dynamo  # never compiled: what comes next depends on numbers
    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Make up to ``max_iter`` iterations; returns the first loss of the closure.

        The closure clears the gradients, computes the loss, calls backward and returns the loss. It is called with
        gradients enabled, and must compute the same function throughout a step: see :meth:`resampled`. If it has an
        argument ``seed``, it gets one number throughout a step, and the next number in the next step.
        """
        limits = self._limits(self.param_groups)
        if closure is None:
            return self._make_state_only(limits)
        self._search(self.param_groups)
        with self._working():
            memory = self._memory_of(self._trained())
            calls = 0 if memory is None else memory.counters.calls
            evaluations = Evaluations(closure, self._parameters(), limits.max_eval, calls, self._sample)
            if takes_seed(closure) and calls:
                self.resampled()
            self._minimize(memory, evaluations, limits)
            return evaluations.first

    def _minimize(self, memory: LimitedMemory | None, evaluations: Evaluations, limits: Limits) -> None:
        self._count_for_callers(memory)
        sample = self._sample.number
        try:
            loss = evaluations(memory.flat if memory is not None else self._method.flat(self._parameters()))
        except BaseException as error:
            self._reason = f"{type(error).__name__} was raised in it"
            if memory is not None:
                memory.counters.func_evals += evaluations.count
            raise
        memory = self._memory_of(self._trained())  # a gradient may have come with the first call
        if memory is None:
            self._reason = "no parameter requires a gradient, so nothing is trained: unfreeze what should be"
            self._notices.say(self._reason)
            return
        c, method = memory.counters, self._method
        c.calls += 1
        c.pending = c.pending if self._sample.number == sample else 0
        memory.weigh(self._roots(memory))
        objective = Objective(memory, evaluations, self._sample, maximize=method.maximize)
        value, gradient = objective.behind(loss)
        c.note_difference(value)
        made = Minimization(memory, objective, self._search(self.param_groups), limits, method.noise, self._tell)
        self._running = made
        try:
            self._reason = made.run(value, gradient)
            c.idle = c.idle if self._reason == BUDGET else 0  # in a row
        except BaseException as error:
            self._reason = f"{type(error).__name__} was raised in it"
            raise
        finally:
            self._running = None
            c.note_loss(None if c.pending or not math.isfinite(made.value) else made.value)
            c.func_evals += evaluations.count
            c.nonfinite += objective.nonfinite
            self._count_for_callers(memory)
        if self._reason in UNKNOWN_LOSS:
            hint = UNSEEN if self._reason == NO_GRADIENT else ""
            self._notices.say(f"{type(self).__name__}: {self._reason}{hint}")

    def _limits(self, groups: Sequence[dict[str, Any]]) -> Limits:
        """As the groups have them: a scheduler, or the user, may have changed them."""
        first = groups[0]
        for group in groups:
            for name in OF_ALL:
                if name in first and group[name] != first[name]:
                    raise ValueError(f"{name} is {first[name]} in one param group and {group[name]} in another: one "
                                     "search moves all parameters, so give it to the optimizer")  # fmt: skip
        if first.get("history_size") != self.defaults.get("history_size"):
            raise ValueError(f"history_size is {first.get('history_size')} in the param groups, and the optimizer was "
                             f"made with {self.defaults.get('history_size')}: make one with that many")  # fmt: skip
        lr = max(float(step_size("lr", group["lr"])) for group in groups)
        return Limits(
            lr,
            at_least_one("max_iter", first["max_iter"]),
            at_least_one("max_eval", first["max_eval"]),
            not_nan("tolerance_grad", first["tolerance_grad"]),
            not_nan("tolerance_change", first["tolerance_change"]),
        )

    def _search(self, groups: Sequence[dict[str, Any]]) -> LineSearch | None:
        """As the groups name it; with or without a search is decided when the optimizer is made."""
        name, made_with = groups[0]["line_search_fn"], self.defaults["line_search_fn"]
        if name == made_with:
            return self._method.search
        if made_with is None or not isinstance(name, str) or name not in LINE_SEARCHES:
            raise ValueError(f"line_search_fn is {name!r} in the param groups, and the optimizer was made with "
                             f"{made_with!r}: make one with line_search_fn={name!r}")  # fmt: skip
        return LINE_SEARCHES[name]

    def _make_state_only(self, limits: Limits) -> None:
        """torch.distributed.checkpoint makes state by a call without closure, with lr 0; it leaves no trace."""
        if limits.lr > 0.0:
            raise TypeError(
                f"{type(self).__name__} evaluates the loss several times in a step: opt.step(closure), where the "
                "closure clears the gradients, calls backward and returns the loss"
            )
        self._memory_of(self._trained())

    def _roots(self, memory: LimitedMemory) -> list[float] | None:
        """Λ^½ by parameter, Λ = lr/max lr; ``None`` where all are the same."""
        sizes = {id(p): float(group["lr"]) for group in self.param_groups for p in group["params"]}
        largest = max(sizes.values())
        found = [(sizes[id(p)] / largest) ** 0.5 if largest else 1.0 for p in memory.flat.params]
        return None if all(root == 1.0 for root in found) else found

    # ------------------------------------------------------------------ the state

    def _parameters(self) -> list[Tensor]:
        """All parameters, frozen ones too, in the order of the groups."""
        return [p for group in self.param_groups for p in group["params"]]

    @property
    def _params(self) -> list[Tensor]:
        """By this name programs reach ``opt.state[opt._params[0]]["n_iter"]`` of torch's L-BFGS."""
        return self._parameters()

    def _trained(self) -> list[Tensor]:
        params, _ = trained(self.param_groups, set() if self._memory is None else self._memory.frozen)
        return params

    def _memory_of(self, params: list[Tensor]) -> LimitedMemory | None:
        """For these parameters; made anew when they have changed."""
        old = self._memory
        if old is not None and old.flat.covers(params):
            return old
        if not params:
            return None
        new = self._method.memory(params)
        if old is not None:
            new.counters = replace(old.counters, has_loss=0, pending=0, has_scale=0, shorter=0.0)
            new.scaled.counters = new.counters
            if not new.scaling.learns_from_pairs:  # no pair has told it about the newcomers
                new.take_h0(old.flat, old.h0_by_parameter())
            warn(
                f"the trainable parameters changed (from {len(old.flat.params)} tensors to {len(params)}): the "
                "curvature history restarts; H0 keeps what it knows of those that stay"
            )
        self._memory = new
        self._show_state()
        return new

    def _count_for_callers(self, memory: LimitedMemory | None) -> None:
        """``n_iter`` and ``func_evals`` where users of torch's L-BFGS look for them."""
        c = Counters() if memory is None else memory.counters
        for p in self._parameters()[:1] if memory is None else {*self._parameters()[:1], *memory.flat.params}:
            self.state[p].update(n_iter=c.n_iter, func_evals=c.func_evals + self._evaluations_under_way())

    def reset_history(self) -> None:
        """Start a new history, if the weights were replaced or the loss has changed. H0 and the totals are kept."""
        if self._memory is not None:
            self._memory.restart()
            self._memory.counters.noise = self._memory.counters.difference = 0.0

    def resampled(self) -> None:
        """Tell the optimizer that the closure has new data: a pair needs two gradients on the same sample.

        Call it between two steps, or in the closure when it draws a new sample. A search under way starts again on the
        new sample.
        """
        self._sample.number += 1
        if self._memory is not None:
            self._memory.counters.pending = 0

    @property
    def scaling(self) -> Scaling:
        """H0 in its current state."""
        return self._memory.scaling if self._memory is not None else self._method.scaling

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Also during training: the curvature history then restarts at the next step, with a warning."""
        given = {**self.defaults, **param_group}
        step_size("lr", given["lr"])
        without = {"weight_decay"} if param_group.get("weight_decay") == 0.0 else set()  # 0 asks for nothing
        check_torchs_in_group({n: v for n, v in param_group.items() if n not in without}, None, OF_WHOLE)
        for name in (name for name in (*OF_ALL, *NOT_IN_GROUPS) if name in given):
            if name not in self.defaults or given[name] != self.defaults[name]:
                raise ValueError(f"{name} in a param group: one search moves all parameters, so give it to the "
                                 "optimizer; groups may have their own lr")  # fmt: skip
        check_misspelt(param_group, ("lr",), (*OF_ALL, *NOT_IN_GROUPS))
        super().add_param_group(param_group)
        try:
            check_one_device(self._parameters())
        except ValueError:
            self.param_groups.pop()
            raise

    # ------------------------------------------------------------------ telling

    def _tell(self, event: Iteration) -> None:
        if self._method.maximize:
            event = replace(event, loss=-event.loss, previous_loss=-event.previous_loss)
        self._recent.append(event)
        self._count_for_callers(self._memory)
        self._telling = True
        try:
            for callback in self._method.on_cycle:
                callback(event)
        finally:
            self._telling = False

    def _evaluations_under_way(self) -> int:
        """Those of this step, which the totals do not know of yet."""
        return 0 if self._running is None else self._running.evaluations.count

    def _last_loss(self, c: Counters) -> float | None:
        """Of the weights as they are, or inside the closure of those from which the search goes."""
        if self._running is None:
            loss = c.loss if c.has_loss else None
        else:
            loss = None if c.pending or not math.isfinite(self._running.value) else self._running.value
        return -loss if loss is not None and self._method.maximize else loss

    @property
    def stats(self) -> WholeStats:
        """Totals so far, also in the middle of a step, and why the last step ended."""
        memory = self._memory
        c = Counters() if memory is None else memory.counters
        nonfinite = c.nonfinite + (0 if self._running is None else self._running.objective.nonfinite)
        return WholeStats(
            c.calls, c.n_iter, c.func_evals + self._evaluations_under_way(), c.stored, c.skipped, c.restarts, nonfinite,
            0 if memory is None else memory.knows, self._last_loss(c), c.noise, self._reason, c.idle,
        )  # fmt: skip

    @property
    def last_iteration(self) -> Iteration | None:
        """The last iteration; ``None`` before the first and after loading a state."""
        return self._recent[-1] if self._recent else None

    def explain(self) -> Explanation:
        """What happened in the last iterations, in plain words, and what to change: ``print(opt.explain())``."""
        from adaqn.explain.fullbatch import explain_whole, whole_record_of

        return explain_whole(whole_record_of(self))

    @overload
    def state_size(self, *, human: Literal[False] = False) -> int: ...
    @overload
    def state_size(self, *, human: Literal[True]) -> str: ...
    def state_size(self, *, human: bool = False) -> int | str:
        """Bytes of state in this process, also before the first step; as text such as ``"31.3 GB"`` if ``human``."""
        params = self._trained()
        size = self._method.bytes_needed(params) if params else 0
        return readable_size(size) if human else size

    # ------------------------------------------------------------------ saving and loading

    @contextmanager
    def _working(self) -> Iterator[None]:
        if self._at_work:
            where = "on_cycle" if self._telling else "the closure"
            raise RuntimeError(f"step() was called inside {where} of step(): call it outside")
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    def _refuse_within_step(self, what: str) -> None:
        if self._telling:
            raise RuntimeError(
                f"{what} was called inside on_cycle, where a step is not finished: call it between two steps; "
                "max_iter says how many iterations a step has"
            )
        if self._at_work:
            raise RuntimeError(
                f"{what} was called inside the closure, where the weights are a trial point of a search: call it "
                "between two steps"
            )

    def _show_state(self) -> None:
        """``self.state`` holds views of the flat buffers for each trained parameter, and what others put there."""
        if self._memory is not None:
            show(self.state, self._memory, own_names(self._memory), saved=False)
            self._count_for_callers(self._memory)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to resume bit for bit, between two steps."""
        self._refuse_within_step("state_dict()")
        if self._memory is None:
            return super().state_dict()
        show(self.state, self._memory, own_names(self._memory), saved=True)
        try:
            return super().state_dict()
        finally:
            self._show_state()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; if it does not fit, one error and nothing is changed."""
        self._refuse_within_step("load_state_dict()")

        def check_groups(groups: Sequence[dict[str, Any]]) -> None:
            self._limits(groups)
            self._search(groups)

        def place(memory: LimitedMemory | None) -> None:
            self._memory = memory
            self._recent.clear()
            self._reason = "a state was loaded"
            self._show_state()

        load_state(self, state_dict, check_groups=check_groups, restore=self._taken, place=place)

    def _taken(self, saved: dict[str, Any]) -> tuple[LimitedMemory | None, dict[str, Any]]:
        """(A memory made from our entries, checked; the saved dictionary without them, for torch to load)."""
        params = self._parameters()
        entries = entries_by_parameter(saved)
        if any("old_dirs" in entry for entry in entries.values()):
            raise ValueError(
                "the state was saved by torch.optim.LBFGS, whose memory has no H0: start without it, the history is "
                "learnt anew within a few iterations"
            )
        if any(map(is_torchs, entries.values())):
            raise ValueError(
                "the state was saved by another optimizer of torch's, and its averages are of no use here: load the "
                "weights alone and start without it"
            )
        empty = {"n_iter", "func_evals"}  # all that there is before the first step
        counts = [entry for entry in entries.values() if not set(entry) - empty]
        entries = {i: entry for i, entry in entries.items() if set(entry) - empty}
        memory, ours = None, set(empty)
        if entries:
            memory = self._method.memory([params[i] for i in entries])
            ours = own_names(memory) | {name for entry in entries.values() for name in entry if is_ours(name)}
            restore(memory, [{name: v for name, v in entry.items() if name in ours} for entry in entries.values()])
        c = Counters() if memory is None else memory.counters
        if not all(isinstance(n, int) and n == getattr(c, name) for entry in counts for name, n in entry.items()):
            raise ValueError(f"the saved counts {counts[0]} are not those of the state: it is damaged")
        return memory, {**saved, "state": foreign(saved, ours)}

    def __getstate__(self) -> dict[str, Any]:
        # torch's own leaves out whatever a subclass adds; what schedulers patch in must stay out.
        own = ("_method", "_memory", "_sample", "_notices", "_recent", "_reason")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}, "_at_work": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_memory" in state:  # a copy, not the loading of a state_dict
            self._show_state()


def restore(memory: LimitedMemory, entries: list[Entry]) -> None:
    """Fill a new memory with what was saved of each of its parameters; one clear error if that does not fit."""
    expected = memory.expected()
    check_entries(entries, memory.flat, expected)
    entries = with_plain_numbers(entries, expected)
    memory.load(entries)
    check_restored(entries, memory)


def check_arguments(method: str, given: Mapping[str, Any]) -> None:
    """An error for arguments that are not there: what to do instead, for those of torch's Adam."""
    if given:
        message = f"{method} has no argument {', '.join(map(repr, given))}"
        raise TypeError(": ".join(filter(None, [message, "; ".join(advice(given, None, OF_WHOLE))])))


def is_ours(name: Any) -> bool:
    """Does a name of this kind stand for a part of some method here, and never for a stranger's note?"""
    return isinstance(name, str) and (name in ("gram", "matrix", "master") or name.startswith(PREFIXES))


PREFIXES = ("scaling_", "pairs_", "pending_")
