"""The loop that all quasi-Newton methods here share; a method is a choice of its parts.

Line numbers are those of the paper's Algorithm 1, D-numbers those of ``docs/decisions.md``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would load the compiler on import
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from adaqn.core.acceptance import NONFINITE_PATIENCE
from adaqn.core.outcome import Outcome
from adaqn.core.products import on_host, size_of
from adaqn.core.scaling import Scaling
from adaqn.core.units import readable_size
from adaqn.optim import checkpoint
from adaqn.optim.curvatures import GradientDifference, ModelCurvature, Rerun
from adaqn.optim.cycle_end import (
    NO_PAIR,
    Offer,
    Products,
    accept,
    adapt_cycle_length,
    curvature_along,
    offer,
    return_to_anchor,
    store,
    sum_kept,
)
from adaqn.optim.descent import (
    OF_ALL,
    Group,
    StepSizes,
    any_momentum,
    check_group,
    check_scheduled,
    descend,
    measure,
)
from adaqn.optim.events import (
    RECENT,
    SHORT_STEPS,
    SHORT_STEPS_WARNING,
    UNSTORED_WARNING,
    Counters,
    CycleEvent,
    Notices,
    Stats,
    warn,
)
from adaqn.optim.judge import Losses, Verdict
from adaqn.optim.layout import size_of_state
from adaqn.optim.making import flat_for, moved, new_state
from adaqn.optim.method import Method
from adaqn.optim.monitor import RotatingMonitor
from adaqn.optim.removed import attribute_error
from adaqn.optim.state import State
from adaqn.optim.torch_arguments import NOT_NEEDED, OF_FAMILY, check_torchs_in_group
from adaqn.optim.warm_start import check_source, fill_scaling, source_states
from adaqn.optim.watch import MonitorFunction, Watch
from adaqn.parameters.flat import check_one_device, trained
from adaqn.parameters.group_keys import check_misspelt
from adaqn.parameters.loading import load_state

if TYPE_CHECKING:
    from adaqn.explain.explanation import Explanation

T = TypeVar("T")
IDLE_WARNING = 10
"""Steps in a row in which no parameter had a gradient, after which a warning says so."""


class QuasiNewton(Optimizer):
    """Gradient in, step out; at the end of a cycle an average to judge and a pair to store.

    It owns its parts: a :class:`~adaqn.optim.state.State` with the vectors, H0, the pairs, the curvature and the
    average; a :class:`~adaqn.optim.watch.Watch` over the monitored loss; and in its
    :class:`~adaqn.optim.method.Method` a :class:`~adaqn.optim.judge.Judge`.
    """

    needs: ClassVar[str] = "step() after backward()"
    """What ``step`` needs, in one line."""
    _moving_lr: Tensor | None = None
    """A step size that is a tensor, and was above 0 when it was read: once, and not in every step."""
    _evaluating_early = False
    """Was ``eval()`` called before there was a state?"""

    def __init__(
        self,
        params: ParamsT,
        method: Method,
        *,
        lr: float | Tensor,
        weight_decay: float = 0.0,
        momentum: float | None = None,
        monitor: MonitorFunction | None = None,
    ) -> None:
        self._method = method
        self._state: State | None = None
        self._notices = Notices()
        self._watch = Watch(monitor, method.judge, self._notices)
        self._recent: deque[CycleEvent] = deque(maxlen=RECENT)
        self._averaging = False
        self._idle_steps = 0
        has_momentum = {} if momentum is None else {"momentum": momentum}
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **has_momentum})

    # ------------------------------------------------------------------ the algorithm

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], T]) -> T: ...
    @_disable_dynamo  # never compiled: the end of a cycle depends on a Python counter
    @torch.no_grad()
    def step(self, closure: Callable[[], T] | None = None) -> T | None:
        """Make one step from the gradients in ``.grad``. A closure, if given, is called first (l. 4 to 8)."""
        self._refuse_while_averaging("step()")
        loss, rerun = self._evaluate(closure)
        params, groups = trained(self.param_groups, self._staying())
        if all(p.grad is None for p in params):
            self._note_no_gradient(params)
            return loss
        state = self._state_for_step(params, rerun)  # l. 1 to 3, before the first step
        sizes = StepSizes(self.param_groups, groups, state.flat.sizes, state.step_multiplier)
        present = state.read_gradients()
        ok, s_dot_g = measure(state, sizes, present)  # from here on the host does not know whether there is a step (D9)
        if not self._may_step(state, ok):
            return loss
        g = state.scratch.gradient
        state.show_to_h0(g, present, ok, negated=self._method.maximize)  # H0: Σg² in the paper
        if self._method.pair_every_step:
            state.move_anchor_here(ok)  # s is this step, whatever moved the weights
        state.curvature.see(g, ok, state.scratch.direction)  # l. 6, before l. 5 spends the gradient
        if state.momentum is not None:  # H0 and F̃ have seen the raw gradient
            state.momentum.mix(g, present, sizes.betas(), ok)
        descend(state, sizes, present, s_dot_g, ok)  # l. 5
        state.add_to_average(ok)  # l. 7
        if state.tally.steps >= state.cycle_length:  # l. 8; D1
            self._finish_cycle(state, sizes)
        return loss

    def _finish_cycle(self, state: State, sizes: StepSizes) -> None:
        """Judge the average of the cycle, and learn a curvature pair from it (l. 9 to 26)."""
        method, c, products = self._method, state.counters, NO_PAIR
        outcome = Outcome.KEPT if c.started and method.memory_size == 0 else Outcome.STARTED
        candidate = state.candidate()  # l. 9
        losses = self._watch.losses(state, candidate)  # one read; the user's code: nothing has changed before it
        lost = self._is_lost(state, losses)
        if state.tally.finite == 0 and not lost:  # D9: there is no average, and the cycle begins anew
            state.begin_cycle()
            return
        judge, pair, verdict = method.judge, None, None
        if lost:
            verdict = judge.lost(c, len(state.pairs))
        elif not losses.unread:  # l. 12; the first cycle has no loss before it
            verdict, losses, _ = self._judged(state, candidate, losses)
        if verdict is None or not verdict.rejected:
            pair, losses = self._form_pair(state, sizes, candidate, losses)  # the other read
        if verdict is None:  # a second look was needed (D35)
            verdict, losses, pair = self._judged(state, candidate, losses, pair)
        if pair is not None and not verdict.rejected:
            outcome, products = store(state, pair)  # l. 19, 20
            if method.pair_every_step and not math.isfinite(pair.yy):  # no finite gradient after the step
                verdict = judge.rejection("not finite", c, len(state.pairs))
        if verdict.rejected:
            outcome = Outcome.REJECTED
            return_to_anchor(state, verdict)  # l. 13 to 15
        elif accept(state, verdict, outcome, candidate, fell=judge.fell(losses)):  # l. 21, 24
            self._watch.anchor_moved()
            state.curvature.anchor_moved()
        state.begin_cycle()  # l. 10
        adapt_cycle_length(state, outcome, products.cosine, self.param_groups[0].get("momentum", 0.0))
        c.count(outcome)  # l. 26
        c.by_first_look += losses.by_first_look
        self._report(state, outcome, losses, products)

    def _judged(
        self, state: State, candidate: Tensor, losses: Losses, pair: Offer | None = None
    ) -> tuple[Verdict, Losses, Offer | None]:
        """The verdict, the losses that it is by, and the pair if there still is one.

        Nothing is rejected for what the anchor's loss once was (D39). An evaluation takes the memory of a pair that was
        formed; where it saves the cycle, the function has changed, and the cycle has none.
        """
        judge, c, pairs = self._method.judge, state.counters, len(state.pairs)
        verdict = judge.verdict(losses, c, pairs, state.best)
        if not verdict.rejected:
            return verdict, losses, pair
        with sum_kept(state, candidate) if pair is not None else nullcontext():
            again = self._watch.with_anchor_again(state, losses)
        return (verdict if again is losses else judge.verdict(again, c, pairs, state.best)), again, None

    def _form_pair(
        self, state: State, sizes: StepSizes, candidate: Tensor, losses: Losses
    ) -> tuple[Offer | None, Losses]:
        """The pair of the cycle, not stored yet, and the losses with what was unread of them, in one read."""
        pair, told = None, list(losses.unread)
        if (state.counters.started or self._method.pair_every_step) and state.curvature.is_ready:  # l. 11
            s = torch.sub(candidate, state.anchor, out=state.scratch.s)  # l. 17
            y = curvature_along(state, s, candidate)  # l. 18
            pair, told = offer(state, s, y, sizes, told)
        elif told:
            told = on_host(*told)
        return pair, self._watch.with_second_look(losses, told) if told else losses

    def _may_step(self, state: State, ok: Tensor) -> bool:
        """Is there a step to make, as far as the host may ask? Mostly it may not, for it would wait for the answer."""
        if self._method.on_nonfinite == "raise" and not bool(ok):
            raise FloatingPointError("the gradient holds inf or nan; nothing was changed (on_nonfinite='raise')")
        # torch.distributed.checkpoint makes state by a call without gradient and lr; it must leave no trace.
        return self._moves() or not bool(ok) or size_of(state.scratch.gradient, state.flat.reduce) > 0.0

    def _is_lost(self, state: State, losses: Losses) -> bool:
        """Is no gradient finite any more, so that the weights must return? An error if there is no way back (D13)."""
        in_row = state.counters.nonfinite_in_row
        if in_row < NONFINITE_PATIENCE and (in_row == 0 or losses.is_number):
            return False
        if not math.isfinite(size_of(state.anchor, state.flat.reduce)):
            raise FloatingPointError(
                "neither the weights nor the point to return to are finite: load good weights, then call "
                "opt.reset_history()"
            )
        return True

    # ------------------------------------------------------------------ before a step

    def _evaluate(self, closure: Callable[[], T] | None) -> tuple[T | None, Rerun | None]:
        """Run the closure, if there is one; keep it for a curvature that compares two gradients of one batch."""
        if closure is None:
            return None, None
        rerun = None
        if self._method.curvature.needs_closure:
            rerun = Rerun(closure, {p.device for p in self._parameters()})
        with torch.enable_grad():
            return closure(), rerun

    def _parameters(self) -> list[Tensor]:
        """All parameters, frozen ones too, in the order of the groups."""
        return [p for group in self.param_groups for p in group["params"]]

    def _staying(self) -> set[int]:
        """Parameters that were frozen with a gradient set by hand (D26)."""
        return set() if self._state is None else self._state.frozen

    def _moves(self) -> bool:
        """Has any group a step size? That call of torch.distributed.checkpoint has none, and no closure either."""
        sizes = [group["lr"] for group in self.param_groups]
        if any(lr is self._moving_lr for lr in sizes):  # it puts another tensor in its place
            return True
        for lr in sorted(sizes, key=lambda lr: isinstance(lr, Tensor)):  # a tensor's value has to be read
            if bool(lr != 0):
                self._moving_lr = lr if isinstance(lr, Tensor) else None
                return True
        return False

    def _note_no_gradient(self, params: list[Tensor]) -> None:
        self._idle_steps += 1
        if not params:
            self._notices.say(
                "no parameter requires a gradient, so nothing is trained: unfreeze those to train (requires_grad_())"
            )
        elif self._idle_steps == IDLE_WARNING:
            self._notices.say(
                f"no parameter had a gradient in {IDLE_WARNING} steps in a row, so nothing is trained: are these the "
                "parameters of the model you train? fully_shard and load_state_dict(assign=True) replace parameters: "
                "build the optimizer after them"
            )

    def _state_for_step(self, params: list[Tensor], rerun: Rerun | None) -> State:
        self._idle_steps = 0
        check_scheduled(self.param_groups)
        if self._method.curvature.needs_closure and rerun is None and self._moves():
            raise RuntimeError(
                f"{type(self).__name__} compares two gradients of the same batch and so needs a closure that it can "
                "run twice: opt.step(closure), where the closure calls zero_grad() and backward() and returns the loss"
            )
        state = self._state_of(params)
        if state.is_new:
            state.restart()  # the weights may have changed since it was made
        if not self._watch.is_checked and self._moves():
            self._watch.check(state)
        if isinstance(state.curvature, GradientDifference):
            state.curvature.rerun = rerun
        if state.momentum is None and any_momentum(self.param_groups):
            state.make_momentum()
            self._show_state()
        return state

    def _state_of(self, params: list[Tensor]) -> State:
        """The state for these parameters; made anew when they have changed."""
        old = self._state
        if old is not None and old.flat.covers(params):
            return old
        if old is None:
            flat = flat_for(self._method, params)
            self._state = new_state(self._method, flat, momentum=any_momentum(self.param_groups))
        else:
            warn(
                f"the trainable parameters changed (from {len(old.flat.params)} tensors on {old.flat.device} to "
                f"{len(params)} on {params[0].device}): the curvature history restarts; H0 keeps its state "
                "for those that stay"
            )
            self._state = moved(old, params)
            self._watch.forget_anchor()
        self._show_state()
        return self._state

    # ------------------------------------------------------------------ telling

    def _report(self, state: State, outcome: Outcome, losses: Losses, products: Products) -> None:
        """Tell whoever wants to know how the cycle ended."""
        c = state.counters
        if c.unstored_in_row >= UNSTORED_WARNING and self._method.memory_size:
            self._notices.say(
                f"{UNSTORED_WARNING} cycles in a row stored no curvature pair, so only H0 is used: "
                "print(opt.explain()) shows why, and what to change"
            )
        if c.step_multiplier < SHORT_STEPS_WARNING and self._method.judge.test is not None:
            self._notices.say(SHORT_STEPS)
        sign = -1.0 if self._method.maximize else 1.0
        f_new, f_old = (None if mean is None else sign * mean for mean in losses.means)
        examples = None if losses.new is None else losses.new.numel() if losses.new.dim() else 0
        event = CycleEvent(
            c.steps, c.cycles, outcome, f_new, f_old, *products[:3], len(state.pairs), c.step_multiplier, examples,
            state.cycle_length, c.stored, c.skipped, c.rejected, c.nonfinite, losses.by_first_look,
        )  # fmt: skip
        self._recent.append(event)
        for callback in self._method.on_cycle:  # the user's code: the cycle is complete before it
            callback(event)

    @property
    def _counters(self) -> Counters:
        """As they are: in mid-cycle one read, of what the device has counted."""
        if self._state is None:
            return Counters()
        self._state.settle()
        return self._state.counters

    @property
    def stats(self) -> Stats:
        """Totals so far. Within a cycle this reads once from the device, to learn which gradients were finite."""
        c, state = self._counters, self._state
        pairs, length = (0, self._method.cycle_length) if state is None else (len(state.pairs), state.cycle_length)
        return Stats(
            c.steps, c.cycles, c.stored, c.skipped, c.rejected, c.nonfinite, pairs, c.step_multiplier, length,
            c.by_first_look,
        )  # fmt: skip

    @property
    def last_cycle(self) -> CycleEvent | None:
        """How the last cycle ended; ``None`` before the first cycle and after loading a state."""
        return self._recent[-1] if self._recent else None

    @overload
    def state_size(self, *, human: Literal[False] = False) -> int: ...
    @overload
    def state_size(self, *, human: Literal[True]) -> str: ...
    def state_size(self, *, human: bool = False) -> int | str:
        """Bytes of state in this process, also before the first step; as text such as ``"31.3 GB"`` if ``human``.

        On the meta device nothing is allocated: ``AdaQN(model.to("meta").parameters()).state_size(human=True)``.
        """
        return readable_size(self._bytes_needed()) if human else self._bytes_needed()

    def _bytes_needed(self) -> int:
        params, _ = trained(self.param_groups, self._staying())
        if self._state is None and not params:
            return 0
        flat = self._state.flat if self._state is not None else flat_for(self._method, params)
        return size_of_state(flat, self._method, momentum=self._has_momentum, **self._kept_vectors).total

    @property
    def _kept_vectors(self) -> dict[str, bool]:
        """Vectors that are there only if they were asked for."""
        return {name: self._state is not None and name in self._state.buffers for name in ("accepted", "iterate")}

    @property
    def _has_momentum(self) -> bool:
        return any_momentum(self.param_groups) or (self._state is not None and self._state.momentum is not None)

    def explain(self) -> Explanation:
        """What happened in the last cycles, in plain words, and what to change: ``print(opt.explain())``.

        It covers the last 40 cycles and the totals. After loading a state, only the totals of earlier cycles are known.
        """
        from adaqn.explain.explanation import explain
        from adaqn.explain.record import record_of

        return explain(record_of(self))

    # ------------------------------------------------------------------ what a user may do between steps

    @property
    def monitor(self) -> MonitorFunction | None:
        """The monitored loss, a function without arguments. Assigning one clears the cached loss at the anchor (D7).

        A new :class:`adaqn.RotatingMonitor` continues at the saved position, because frameworks load the state before
        they build the monitor.
        """
        return self._watch.monitor

    @monitor.setter
    def monitor(self, monitor: MonitorFunction | None) -> None:
        if isinstance(monitor, RotatingMonitor) and monitor.position == 0 and self._state is not None:
            monitor.position = self._state.counters.monitor_position
        if self._state is not None and self._watch.monitor is not None:  # the first one after loading is the same one
            self._state.forget_best()
        self._watch.use(monitor)

    @property
    def scaling(self) -> Scaling:
        """H0 in its current state."""
        return self._state.scaling if self._state is not None else self._method.scaling

    @property
    def averaging(self) -> float:
        """c of the growing average; with 0 only the last accepted cycle is shown."""
        return self._method.averaging

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Replace the weights by the average of accepted cycles inside a ``with`` block; see ``averaging``.

        Before the first accepted cycle, and after :meth:`eval`, it changes nothing. With ``averaging=0`` it shows the
        last accepted cycle and allocates a vector on first use; right after a skipped pair it shows the weights once.
        A state saved inside the block is that of :meth:`eval`: loaded, it goes on after :meth:`train`.
        """
        if self._averaging:
            raise RuntimeError("averaged() was entered twice: leave the first block before the second")
        if self._state is None or not self._state.counters.started or self._evaluating:
            yield
            return
        self.eval()
        self._averaging = True
        try:
            yield
        finally:
            self._averaging = False
            self.train()

    @torch.no_grad()
    def eval(self) -> None:
        """Replace the weights by the average of :meth:`averaged` until :meth:`train`, to evaluate or save the model.

        The weights are kept in one more vector and saved with the state: a run saved here resumes bit-for-bit after
        loading and :meth:`train`. ``step()`` raises an error meanwhile. A second call does nothing.
        """
        if self._averaging:
            raise RuntimeError("eval() was called inside averaged(): leave the block first")
        if self._evaluating:
            return
        self._evaluating_early = True
        state = self._state
        if state is not None:
            state.counters.evaluating = 1
            state.keep_iterate()
            if state.counters.started:
                self._watch.place(state, state.keep_accepted())
            self._show_state()

    @torch.no_grad()
    def train(self) -> None:
        """Restore the weights after :meth:`eval`. Otherwise it does nothing."""
        if self._averaging:
            raise RuntimeError("train() was called inside averaged(): leave the block first")
        self._evaluating_early = False
        state = self._state
        if state is not None and state.iterate is not None:
            self._watch.place(state, state.iterate)
            state.counters.evaluating = 0
            del state.buffers["iterate"]
            self._show_state()

    @property
    def _evaluating(self) -> bool:
        return self._evaluating_early if self._state is None else bool(self._state.counters.evaluating)

    def _refuse_while_averaging(self, what: str) -> None:
        if self._averaging:
            raise RuntimeError(f"{what} was called inside averaged(): leave the block first")
        if self._evaluating:
            raise RuntimeError(f"{what} was called after eval(), while the model holds the average: "
                               "call train() first")  # fmt: skip

    @torch.no_grad()
    def reset_history(self) -> None:
        """Start a new history. Call it after you have changed the weights yourself. H0 and the totals are kept."""
        self._refuse_while_averaging("reset_history()")
        if self._state is not None:
            self._state.restart()
            self._watch.forget_anchor()

    @torch.no_grad()
    def warm_start(self, source: Optimizer | dict[str, Any]) -> None:
        """Start with the second moments of torch's Adagrad, RMSprop or Adam (an optimizer or its state_dict).

        Parameters of an optimizer are matched by identity, those of a state_dict by their order.
        """
        check_source(source, self._method.scaling)
        everything = self._parameters()
        states = dict(zip(map(id, everything), source_states(source, everything), strict=True))
        params, _ = trained(self.param_groups, self._staying())
        if not params:
            raise ValueError("no parameter requires a gradient: unfreeze what should be trained first")
        state = self._state_of(params)
        name = next(iter(state.scaling.vector_names), None)
        views = state.flat.views(state.scaling.vectors[name]) if name else []
        fill_scaling(state.scaling, views, [states[id(p)] for p in state.flat.params], state.flat)

    def add_param_group(self, param_group: Group) -> None:
        """Also during training: the curvature history then restarts at the next step, with a warning."""
        self._refuse_while_averaging("add_param_group()")
        averages = "momentum" in self.defaults
        check_torchs_in_group(
            {name: value for name, value in param_group.items() if name not in self.defaults},
            type(self._method.scaling) if averages else None,
            NOT_NEEDED if averages else OF_FAMILY,
        )
        check_group({**self.defaults, **param_group}, self.defaults)
        check_misspelt(param_group, self.defaults, OF_ALL)
        super().add_param_group(param_group)
        everything = self._parameters()
        try:
            check_one_device(everything)
            if isinstance(self._method.curvature, ModelCurvature):
                self._method.curvature.check(everything)
        except ValueError:
            self.param_groups.pop()
            raise

    # ------------------------------------------------------------------ saving and loading

    def _show_state(self) -> None:
        """``self.state`` holds views of the flat buffers for each trained parameter, and what others put there."""
        checkpoint.show(self.state, self._state, saved=False)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume bit-for-bit, also in the middle of a cycle."""
        if self._state is None:
            return super().state_dict()
        checkpoint.show(self.state, self._state, saved=True)
        try:
            return super().state_dict()
        finally:
            self._show_state()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state. If it does not fit, raise one error and change nothing."""
        if self._averaging:
            raise RuntimeError("load_state_dict() was called inside averaged(): leave the block first")

        def check_groups(groups: Sequence[Group]) -> None:
            for group in checkpoint.with_momentum(groups, self.param_groups):
                check_group(group, self.defaults)

        def restore(saved: dict[str, Any]) -> tuple[State | None, dict[str, Any]]:
            return checkpoint.taken(saved, self._method, self.param_groups)

        def place(state: State | None) -> None:
            self._state = state
            self._watch.forget_anchor()
            self._evaluating_early = False
            self._recent.clear()
            if state is not None:
                self._watch.take_turn_of(state)
            self._show_state()

        load_state(
            self, state_dict, check_groups=check_groups, restore=restore, place=place, optional=("momentum",)
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        # torch's own leaves out whatever a subclass adds; what schedulers patch in must stay out.
        own = ("_method", "_state", "_watch", "_notices", "_idle_steps", "_recent", "_evaluating_early")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}, "_averaging": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_state" in state:  # a copy, not the loading of a state_dict
            self._show_state()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise attribute_error(self, name)
