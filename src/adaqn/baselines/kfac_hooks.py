"""What K-FAC sees of a model: the inputs of each layer's calls, paired with the gradients of their outputs.

A hook on the layer puts a hook on each output, which holds that call's inputs; it dies with the graph, so a forward
pass without a backward pass leaves nothing behind. In a backward pass every call is added to sums as large as the
factors, and the inputs are let go.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from adaqn.baselines.kfac_factors import LayerForm, PassSums
from adaqn.baselines.kfac_layers import Block, Layer


@dataclass(frozen=True)
class LossTerms:
    """How the gradients of a backward pass relate to those of single loss terms, and so what M is."""

    mean: bool
    terms_per_example: int
    average_passes: bool
    """Is each pass an estimate of its own (sampled targets), or a part of one accumulated gradient?"""

    def count(self, examples: int) -> int:
        """M, the factor of G."""
        return examples * self.terms_per_example if self.mean else 1


class Estimate:
    """A and G from all backward passes since the last step; one pass is one ``PassSums`` that is still open."""

    def __init__(self, form: LayerForm, expand: bool, terms: LossTerms) -> None:
        self.form, self.expand, self.terms = form, expand, terms
        self.clear()

    def clear(self) -> None:
        self.current: PassSums | None = None
        self.task = -1
        self.A: Tensor | None = None
        self.G: Tensor | None = None
        self.examples = 0

    def add(self, task: int, x: Tensor, g: Tensor) -> None:
        """One call, in the backward pass of that number."""
        if self.current is None or task != self.task:
            self._close()
            self.current, self.task = PassSums(self.form, self.expand), task
        self.current.add(x, g)

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """(A, G), or ``None`` if no call was seen."""
        self._close()
        if self.A is None or self.G is None or self.examples == 0:
            return None
        if self.terms.average_passes:
            return self.A / self.examples, self.G / self.examples
        return self.A / self.examples, self.G * self.terms.count(self.examples)

    def _close(self) -> None:
        done, self.current = self.current, None
        if done is None:
            return
        n = done.examples
        weight = n * self.terms.count(n) if self.terms.average_passes else 1
        A, G = done.input_factor() * n, done.gradient_sum() * weight
        self.A = A if self.A is None else self.A.add_(A)
        self.G = G if self.G is None else self.G.add_(G)
        self.examples += n


class Recorder:
    """The estimates of all layers, and the hooks that feed them."""

    def __init__(self, blocks: Sequence[Block], *, expand: bool, terms: LossTerms) -> None:
        self.estimates = [Estimate(block.form, expand, terms) for block in blocks]
        self.sampled = terms.average_passes
        self.sampling = False
        self.due = True
        """Is the next step to update the factors?"""
        self._handles: list[RemovableHandle] = []
        self.attach(blocks)

    def attach(self, blocks: Sequence[Block]) -> None:
        for index, block in enumerate(blocks):
            self._handles.append(block.layer.register_forward_hook(CallHook(self, index), with_kwargs=True))

    @property
    def attached(self) -> bool:
        return bool(self._handles)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def clear(self) -> None:
        for estimate in self.estimates:
            estimate.clear()

    def collect(self) -> list[tuple[Tensor, Tensor] | None]:
        """(A, G) of each layer, or ``None`` where nothing was seen; the estimates start anew."""
        with torch.no_grad():
            factors = [estimate.factors() for estimate in self.estimates]
        self.clear()
        return factors

    @contextmanager
    def sampling_for(self, params: Iterable[Tensor]) -> Iterator[None]:
        """Backward passes inside count as samples, and the gradients of the parameters are afterwards as before."""
        if self.sampling:
            raise RuntimeError("sampling() was entered twice: leave the first block before the second")
        kept = [(p, p.grad) for p in params]
        for p, _ in kept:
            p.grad = None
        self.sampling = True
        try:
            yield
        finally:
            self.sampling = False
            for p, gradient in kept:
                p.grad = gradient

    def see_call(self, index: int, layer: Layer, x: Tensor, output: Tensor) -> None:
        training = layer.training and torch.is_grad_enabled() and output.requires_grad and layer.weight.requires_grad
        if training and (self.due or self.sampled):
            x = x.detach()
            output.register_hook(lambda g: self.see_gradient(index, layer, x, g))  # type: ignore[no-untyped-call]

    def see_gradient(self, index: int, layer: Layer, x: Tensor, g: Tensor) -> None:
        if self.sampling == self.sampled:
            task = torch._C._current_graph_task_id()  # one number per call of backward(): that of the pass
            with torch.no_grad():
                self.estimates[index].add(task, x, g.detach().to(layer.weight.dtype))

    def __getstate__(self) -> dict[str, Any]:
        # The hooks belong to the original's model: whoever copies a recorder attaches the copy.
        return {**self.__dict__, "_handles": [], "sampling": False}


class CallHook:
    """Tells a recorder of the calls of a layer, as long as that recorder lives.

    A copy of the model, made by ``deepcopy`` or ``torch.save``, gets a hook that does nothing instead: it does not
    carry the optimizer along, and its calls are nobody's.
    """

    def __init__(self, recorder: Recorder | None = None, index: int = 0) -> None:
        self.recorder = None if recorder is None else weakref.ref(recorder)
        self.index = index

    def __call__(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        recorder = None if self.recorder is None else self.recorder()
        if recorder is not None:
            recorder.see_call(self.index, layer, args[0] if args else kwargs["input"], output)

    def __reduce__(self) -> tuple[type[CallHook], tuple[()]]:
        return CallHook, ()
