"""Many parameters as one vector.

The vector is of real numbers, float32 or wider; complex parameters enter as pairs of reals.
Parameters stay where they are: ``gather`` and ``scatter`` copy, ``views`` cut a flat tensor into
pieces shaped like the parameters without copying. Where several processes share one model, the vector
may hold only this process's part of each parameter (:mod:`adaqn.parameters.sharded`).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from adaqn.core.products import Reduce, local
from adaqn.core.scaling import Scaling
from adaqn.parameters.processes import Processes


class FlatParameters:
    """The trainable parameters, in order, and where each lies in the flat vector."""

    is_whole = True
    """Has this process all of every parameter in its vectors?"""
    bytes_of_copy = 0
    """Of a copy of the weights in which they are moved, where there is one."""

    def __init__(self, params: Sequence[Tensor], processes: Processes | None = None) -> None:
        check_one_device(params)
        self.params = list(params)
        self.processes = processes or Processes()
        self.device = self.params[0].device
        self.dtype = torch.float32
        for p in self.params:
            self.dtype = torch.promote_types(self.dtype, p.dtype.to_real())
        self.shapes = self.part_shapes()
        self.sizes = [shape.numel() for shape in self.shapes]
        self.n = sum(self.sizes)
        if sum(p.numel() for p in self.params) == 0:
            raise ValueError("all parameters are empty: there is nothing to train")
        self._kinds = [_kind(p) for p in self.params]

    @property
    def reduce(self) -> Reduce:
        """Makes a product of vectors from what this process has of it."""
        return local

    @property
    def settle(self) -> Reduce:
        """The same for products by which something is decided: all processes go by the same numbers."""
        return local if self.processes.count == 1 else self.processes.first

    def part_shapes(self) -> list[torch.Size]:
        """Of what the vector holds of each parameter."""
        return [part.shape for part in self.parts(self.params)]

    def parts(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What the vector holds of tensors shaped like the parameters: real views."""
        return [as_real(tensor) for tensor in tensors]

    def read(self, targets: list[Tensor], tensors: Sequence[Tensor], indices: Sequence[int]) -> None:
        """The targets ← what the vector holds of tensors shaped like the parameters of those indices."""
        torch._foreach_copy_(targets, self.parts(tensors))

    def shown(self, index: int, view: Tensor) -> Tensor:
        """The view of a buffer, of shape (..., *shape), to look at."""
        return view

    def saved(self, index: int, view: Tensor) -> Tensor:
        """The same as it is saved. In several processes it may be a common work of all."""
        return self.shown(index, view)

    def saved_shape(self, index: int) -> tuple[int, ...]:
        """Of a vector, as it is saved."""
        return tuple(self.shapes[index])

    def held(self, index: int, saved: Tensor, view: Tensor) -> Tensor:
        """What the view of a buffer takes from a saved tensor."""
        return saved.reshape(view.shape)

    def fingerprints(self, candidate: Tensor) -> tuple[float, float, float, float]:
        """Of the candidate and of the gradients, by which processes see whether they have the same ones."""
        if self.processes.count == 1:
            return NO_PRINT * 2
        return *fingerprint([candidate]), *self.print_of_gradients()

    def print_of_weights(self) -> tuple[float, float]:
        return fingerprint([as_real(p.detach()).reshape(-1) for p in self.params])

    def print_of_gradients(self) -> tuple[float, float]:
        gradients = (p.grad for p in self.params if p.grad is not None and p.grad.layout == torch.strided)
        return fingerprint([as_real(gradient).reshape(-1) for gradient in gradients])

    def for_scaling(self, scaling: Scaling) -> FlatParameters:
        """The vectors that H0 learns from and is applied to."""
        return self

    def publish(self) -> None:
        """Tell the other processes about weights that only this one has changed."""

    def covers(self, params: Sequence[Tensor]) -> bool:
        """Are these exactly the parameters in here, and still what they were?"""
        same = len(params) == len(self.params) and all(map(operator.is_, params, self.params))
        return same and list(map(_kind, params)) == self._kinds

    def new(self, *rows: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """Zeros of shape (*rows, n), ordinary tensors also where inference mode is on."""
        with torch.inference_mode(False):
            return torch.zeros(*rows, self.n, dtype=dtype or self.dtype, device=device or self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """``flat``, of shape (..., n), as one view per parameter of shape (..., *shape)."""
        pieces = torch.split(flat, self.sizes, dim=-1)
        return [v.view(flat.shape[:-1] + shape) for v, shape in zip(pieces, self.shapes, strict=True)]

    @torch.no_grad()
    def gather_gradients(self, views: list[Tensor]) -> list[int]:
        """The views of a vector ← the gradients, zero where there is none; returns which parameters have one."""
        present, targets, gradients, missing = [], [], [], []
        for i, (p, view) in enumerate(zip(self.params, views, strict=True)):
            if p.grad is None:
                missing.append(view)
                continue
            if p.grad.layout != torch.strided:
                raise RuntimeError(
                    f"parameter {i} of shape {tuple(p.shape)} has a sparse gradient ({p.grad.layout}), "
                    "and curvature pairs need dense ones: build the layer with sparse=False"
                )
            present.append(i)
            targets.append(view)
            gradients.append(p.grad)
        if missing:
            torch._foreach_zero_(missing)
        if present:
            self.read(targets, gradients, present)
        return present

    def evaluated(self) -> AbstractContextManager[None]:
        """Around an evaluation of the model."""
        return nullcontext()

    @torch.no_grad()
    def gather(self, out: Tensor) -> Tensor:
        """out ← the parameters."""
        torch._foreach_copy_(self.views(out), self.reals())
        return out

    @torch.no_grad()
    def scatter(self, flat: Tensor) -> None:
        """The parameters ← flat, in all processes."""
        torch._foreach_copy_(self.reals(), self.views(flat))
        self.publish()

    def reals(self) -> list[Tensor]:
        """Real views of what the vector holds of the parameters."""
        return self.parts(self.params)

    @contextmanager
    def swapped(self, flat: Tensor, backup: Tensor) -> Iterator[None]:
        """The parameters hold ``flat`` within the block, and what they held before after it, whatever happens."""
        self.gather(backup)
        try:
            self.scatter(flat)
            yield
        finally:
            self.scatter(backup)


NO_PRINT = (0.0, 0.0)


def fingerprint(vectors: Sequence[Tensor]) -> tuple[float, float]:
    """(A sum with alternating signs, the norm): vectors that differ by d differ in the first by about ‖d‖."""
    if not vectors:
        return NO_PRINT
    signed = [v[0::2].sum(dtype=torch.float64) - v[1::2].sum(dtype=torch.float64) for v in vectors]
    norms = [torch.linalg.vector_norm(v, dtype=torch.float64) for v in vectors]
    return float(torch.stack(signed).sum()), float(torch.stack(norms).norm())


def trainable(params: Iterable[Tensor]) -> list[Tensor]:
    """Those that require a gradient, of which there must be one."""
    found = [p for p in params if p.requires_grad]
    if not found:
        raise ValueError("no parameter requires a gradient: unfreeze what should be trained first")
    return found


def trained(groups: Iterable[dict[str, Any]], staying: Collection[int]) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """The parameters that require a gradient, have one or are ``staying`` by their id (D26), and the group of each."""
    params, of_each = [], []
    for group in groups:
        for p in group["params"]:
            if p.requires_grad or p.grad is not None or id(p) in staying:
                params.append(p)
                of_each.append(group)
    return params, of_each


def check_one_device(params: Sequence[Tensor]) -> None:
    devices = sorted({str(p.device) for p in params})
    if len(devices) > 1:
        raise ValueError(
            f"the parameters lie on several devices ({', '.join(devices)}), and one quasi-Newton "
            "matrix spans them all: move the model to one device, or give each part its own optimizer"
        )


def _kind(p: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return p.shape, p.dtype, p.device


def as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_complex(pairs: Tensor) -> Tensor:
    """The other way round, of a piece of a vector; a copy where it begins at an odd place."""
    return torch.view_as_complex(pairs if pairs.storage_offset() % 2 == 0 else pairs.clone())
