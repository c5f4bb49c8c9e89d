"""Where the matrices of H0 lie, and how they are saved: whole, in shards, or in blocks that are dealt out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from adaqn.core.eigenbasis import matrix_shape
from adaqn.core.kronecker import Kronecker
from adaqn.core.scaling import Scaling
from adaqn.core.turning import Place
from adaqn.parameters.buffers import Shapes, tensor_layout, total
from adaqn.parameters.dealt import FlatBlocks
from adaqn.parameters.exchange import from_slices, to_slices
from adaqn.parameters.flat import FlatParameters
from adaqn.parameters.shards import FlatShards
from adaqn.parameters.slices import needs_matrices, slice_bounds

DIAGONAL = "_in_own_coordinates"
"""Behind the name of a vector: what a parameter that has other blocks now begins again with."""
OTHER_BLOCKS = (
    "the saved bases of parameter {} are not those of its blocks here: use the block_size and the shards that they "
    "were saved with; or they are damaged"
)
SAME_SUM = 1e-2
"""How far sums of the same numbers in other coordinates may be apart, relative to them."""
_OF_OTHERS = re.compile(rf"scaling_.*({DIAGONAL}|_shards_else_allow_partial_load)")


def of_other_layout(name: Any) -> bool:
    """Is that a name by which only parameters in shards have something saved?"""
    return isinstance(name, str) and _OF_OTHERS.fullmatch(name) is not None


class H0Layout:
    """A matrix for each parameter, saved by the names that H0 gives.

    ``shapes`` are those of the parts of a vector that H0 sees as parameters of its own, ``owners`` say of which
    parameter each is a part.
    """

    def __init__(self, flat: FlatParameters, scaling: Scaling) -> None:
        self.flat, self.scaling = flat, scaling
        self.shapes: list[tuple[int, ...]] = [tuple(shape) for shape in flat.shapes]
        self.owners = list(range(len(self.shapes)))

    def places(self) -> dict[str, Any]:
        """What a Kronecker H0 must know of its parts if they lie in whole parameters."""
        return {}

    @cached_property
    def plan(self) -> dict[str, Shapes]:
        """Name → the shape of what is kept here of each part."""
        return tensor_layout(self.scaling, self.shapes)

    @property
    def count(self) -> int:
        """Numbers that are kept here in matrices."""
        return sum(map(total, self.plan.values()))

    @cached_property
    def expected(self) -> dict[str, Shapes]:
        """Name → the shape of what is saved of each parameter."""
        return self.plan

    @cached_property
    def names(self) -> set[str]:
        """By which H0's matrices may be saved."""
        diagonals = {f"scaling_{name}{DIAGONAL}" for name in self.scaling.vector_names}
        return {*self.expected, *(diagonals if self.expected else ())}

    def parts_of(self, indices: Iterable[int]) -> list[int]:
        """The parts of these parameters."""
        return list(indices)

    def to_look_at(self, index: int, tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """By their names, what is kept here of a parameter."""
        return tensors[index]

    def saved(self, index: int, tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """What is saved of a parameter."""
        return {**tensors[index], **self.straight(index)}

    def load(self, index: int, entry: Mapping[str, Any], tensors: list[dict[str, Tensor]]) -> None:
        """Take back what ``saved`` gave; H0 has its vectors and numbers already.

        Matrices that were not saved by this layout are not there, or are those of an optimizer that has seen nothing
        (torch.distributed.checkpoint leaves what it does not find as it was): the parameter begins again with what is
        known of it in its own coordinates.
        """
        names = {name for name, shapes in self.expected.items() if shapes[index] is not None}
        if not names:
            return
        if names <= set(entry):
            self.take(index, entry, tensors)
            if not self._seem_not_loaded(index) or self._are_straight(index, entry):
                self.check_bases(index)
                return
        self.restart(index, entry)

    def check_bases(self, index: int) -> None:
        """Are they of these blocks? As many numbers may be those of others; all processes find the same."""
        if not isinstance(self.scaling, Kronecker):
            return
        wrong = sum(not self.scaling.has_bases(part) for part in self.parts_of([index]))
        if self._everywhere(wrong) > 0:
            raise ValueError(OTHER_BLOCKS.format(index))

    def take(self, index: int, entry: Mapping[str, Any], tensors: list[dict[str, Tensor]]) -> None:
        """Copy the matrices."""
        for name, ours in tensors[index].items():
            ours.copy_(entry[name].reshape(ours.shape))

    def _seem_not_loaded(self, index: int) -> bool:
        """Second moments of gradients that were seen, beside matrices from before the first of them?

        One that has begun again, and seen nothing since, has just these; its second moments are in its own coordinates.
        """
        if not isinstance(self.scaling, Kronecker) or not self._seen(index):
            return False
        learnt = sum(not self.scaling.is_new(part) for part in self.parts_of([index]))
        vectors = sum(bool(view.any()) for view in self._vectors(index).values())
        return self._everywhere(learnt) == 0 and self._everywhere(vectors) > 0

    def straight(self, index: int) -> dict[str, Tensor]:
        """What is saved of matrices that would seem not to be loaded, for all gradients since they began were zero."""
        if not self._seem_not_loaded(index):
            return {}
        vectors = self._vectors(index).items()
        return {f"scaling_{name}{DIAGONAL}": self.flat.saved(index, view.clone()) for name, view in vectors}

    def _are_straight(self, index: int, entry: Mapping[str, Any]) -> bool:
        """Was it saved that the vectors are in the parameter's own coordinates?"""
        vectors, others = self._vectors(index), 0
        if not {f"scaling_{name}{DIAGONAL}" for name in vectors} <= set(entry):
            return False
        for name, view in vectors.items():
            known = self.flat.held(index, entry[f"scaling_{name}{DIAGONAL}"], view)
            others += not torch.equal(known.to(view), view)
        return self._everywhere(others) == 0

    def _everywhere(self, count: int) -> float:
        """Over all processes, where each has a part."""
        return float(self.flat.reduce(torch.tensor([float(count)], dtype=torch.float64, device=self.flat.device)))

    def _seen(self, index: int) -> float:
        """How many gradients H0 has seen, the same in all processes: by that matrices and vectors know each other."""
        (part, *_) = self.parts_of([index])
        numbers = self.scaling.numbers(part)
        return float(numbers.get("seen", max(numbers.values(), default=0.0)))

    def restart(self, index: int, entry: Mapping[str, Any]) -> None:
        """Begin with what is saved in the parameter's own coordinates.

        No rotation changes the sum of a vector. By that it is known whether what is there belongs to it; where it does
        not, because nothing was saved, each number has the mean.
        """
        for name, view in self._vectors(index).items():
            known = entry.get(f"scaling_{name}{DIAGONAL}")
            own = torch.zeros_like(view) if known is None else self.flat.held(index, known, view)
            sums = torch.stack([view.sum(), own.sum(), view.new_tensor(float(view.numel()))]).double()
            rotated, straight, count = self.flat.reduce(sums).tolist()
            belongs = abs(rotated - straight) <= SAME_SUM * rotated
            view.copy_(own if belongs else view.new_tensor(rotated / max(count, 1.0)))
        for part in self.parts_of([index]):
            self.scaling.restart(part)

    def _vectors(self, index: int) -> dict[str, Tensor]:
        return {name: self.flat.views(vector)[index] for name, vector in self.scaling.vectors.items()}


class ShardedH0(H0Layout):
    """The rows of a parameter that lie here are a matrix, with blocks of its own.

    These differ with the number of shards, in number and in size. So they are saved by a name that holds that number,
    one row for each shard; and beside them, in shards of the parameter's own shape, the vectors in the parameter's own
    coordinates, with which another number of shards begins again.
    """

    flat: FlatShards

    def __init__(self, flat: FlatShards, scaling: Scaling) -> None:
        super().__init__(flat, scaling)
        self.every = [self._shapes_of_all(i) for i in range(len(self.shapes))]
        self.shapes = [shapes[here] for shapes, here in zip(self.every, map(self._here, self.owners), strict=True)]
        self.longest = [max(self._size(shape) for shape in shapes) for shapes in self.every]
        """Numbers in the matrices of the shard that has most of them, by parameter."""

    def places(self) -> dict[str, Any]:
        """Shards lie one behind the other, below or beside each other as they are cut."""
        if not isinstance(self.scaling, Kronecker):
            return {}
        places, every = [], []
        for i, shapes in enumerate(self.every):
            below, found = self._lie_below_each_other(i), []
            ends = [0, *accumulate(shape[0 if below else -1] for shape in shapes)]
            starts = [(end, 0) if below else (0, end) for end in ends]
            for (row, column), shape in zip(starts, shapes, strict=False):
                found += [block.moved(row, column) for block in self.scaling.blocks(shape) or []]
            places.append(Place(i, *starts[self._here(i)]))
            every.append(found)
        return {"places": places, "blocks": every}

    def _lie_below_each_other(self, index: int) -> bool:
        from adaqn.parameters.dtensors import shard_counts

        return all(dim < self._cut(index) for _, dim in shard_counts(self.flat.params[index]))

    def _cut(self, index: int) -> int:
        """The first dimension that belongs to the columns."""
        whole = self.flat.saved_shape(index)
        halves = ((k, (math.prod(whole[:k]), math.prod(whole[k:]))) for k in range(1, len(whole)))
        return next((k for k, both in halves if both == matrix_shape(whole)), len(whole))

    def _shapes_of_all(self, index: int) -> list[tuple[int, ...]]:
        """Of each shard, as a matrix that is cut where the whole parameter is."""
        from adaqn.parameters.dtensors import shard_counts

        whole = self.flat.saved_shape(index)
        found = [list(whole)]
        for count, dim in shard_counts(self.flat.params[index]):
            cut = [[slice_bounds(shape[dim], k, count) for k in range(count)] for shape in found]
            found = [
                [*shape[:dim], stop - start, *shape[dim + 1 :]]
                for shape, bounds in zip(found, cut, strict=True)
                for start, stop in bounds
            ]
        if len(whole) < 2:
            return [tuple(shape) for shape in found]
        return [matrix_shape(shape, self._cut(index)) for shape in found]

    def _here(self, index: int) -> int:
        from adaqn.parameters.dtensors import shard_counts, shard_index

        p, number = self.flat.params[index], 0
        for (count, _), at in zip(shard_counts(p), shard_index(p), strict=True):
            number = number * count + at
        return number

    def _size(self, shape: tuple[int, ...]) -> int:
        return sum(map(math.prod, self.scaling.tensor_shapes(shape).values()))

    def name(self, index: int) -> str:
        """Where the matrices of all shards are saved. Who loads with another number of them reads it in an error."""
        from adaqn.parameters.dtensors import shard_counts

        counts = shard_counts(self.flat.params[index])
        ways = [f"{count}" if dim == 0 else f"{count}_along_{dim}" for count, dim in counts]
        return f"scaling_blocks_of_{'_x_'.join(ways)}_shards_else_allow_partial_load"

    @cached_property
    def expected(self) -> dict[str, Shapes]:
        return {}

    @cached_property
    def names(self) -> set[str]:
        found = {self.name(i) for i, longest in enumerate(self.longest) if longest}
        diagonals = {f"scaling_{name}{DIAGONAL}" for name in self.scaling.vector_names}
        whole = tensor_layout(self.scaling, [self.flat.saved_shape(i) for i in self.owners])
        return {*whole, *self.plan, *found, *(diagonals if found else ())}

    def saved(self, index: int, tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        if not self.longest[index]:
            return {}
        from adaqn.parameters.dtensors import row_per_shard

        row = self.flat.new()[:0].new_zeros(1 + self.longest[index])
        row[0] = self._seen(index)
        numbers = [tensor.reshape(-1) for tensor in tensors[index].values()]
        if numbers:
            row[1 : 1 + sum(map(len, numbers))] = torch.cat(numbers)
        own = self.scaling.own_moments(index) or self._vectors(index)
        return {
            self.name(index): row_per_shard(self.flat.params[index], row),
            **{
                f"scaling_{name}{DIAGONAL}": self.flat.saved(index, moments.reshape(self.flat.shapes[index]).clone())
                for name, moments in own.items()
            },
        }

    def load(self, index: int, entry: Mapping[str, Any], tensors: list[dict[str, Tensor]]) -> None:
        seen = self._seen(index)
        if not self.longest[index] or not seen:
            return
        from adaqn.parameters.dtensors import part_like, row_per_shard

        found = entry.get(self.name(index))
        if found is not None:
            if found.shape[-1] != 1 + self.longest[index]:
                raise ValueError(OTHER_BLOCKS.format(index))
            ours = row_per_shard(self.flat.params[index], self.flat.new()[:0].new_zeros(1 + self.longest[index]))
            row = part_like(found.to(ours.dtype), ours).reshape(-1)
            if row[0] == row.new_tensor(seen):
                pieces = torch.split(row[1 : 1 + sum(t.numel() for t in tensors[index].values())],
                                     [t.numel() for t in tensors[index].values()])  # fmt: skip
                for ours, piece in zip(tensors[index].values(), pieces, strict=True):
                    ours.copy_(piece.view(ours.shape))
                self.check_bases(index)
                return
        self.restart(index, entry)


class DealtH0(H0Layout):
    """Each block that lies here is a matrix of its own; a process may have none of a parameter."""

    flat: FlatBlocks

    def __init__(self, flat: FlatBlocks, scaling: Scaling) -> None:
        super().__init__(flat, scaling)
        self.shapes, self.owners = [], []
        for i, (grid, blocks) in enumerate(zip(flat.grids, flat.mine, strict=True)):
            empty: tuple[int, ...] = (0, 0) if grid.is_cut else (0,)  # its counts go on
            found = [grid.shape(block) for block in blocks] or [empty]
            self.shapes += found
            self.owners += [i] * len(found)

    def places(self) -> dict[str, Any]:
        if not isinstance(self.scaling, Kronecker):
            return {}
        places = []
        for i, blocks in enumerate(self.flat.mine):
            places += [Place(i, block.rows[0], block.columns[0]) for block in blocks] or [Place(i)]
        return {"places": places, "blocks": [grid.blocks if grid.is_cut else [] for grid in self.flat.grids]}

    def parts_of(self, indices: Iterable[int]) -> list[int]:
        wanted = set(indices)
        return [part for part, owner in enumerate(self.owners) if owner in wanted]

    def _sizes(self, index: int, name: str) -> list[int]:
        """Of each block of a parameter, in the order of the blocks."""
        grid = self.flat.grids[index]
        kept = [self.scaling.tensor_shapes(grid.shape(block)).get(name, (0,)) for block in grid.blocks]
        return [math.prod(shape) for shape in kept]

    @cached_property
    def expected(self) -> dict[str, Shapes]:
        found: dict[str, Shapes] = {}
        for index, grid in enumerate(self.flat.grids):
            whole = self.scaling.tensor_shapes(grid.matrix) if grid.is_cut else {}
            for name in whole:
                shapes = found.setdefault(f"scaling_{name}", [None] * len(self.flat.grids))
                shapes[index] = (sum(self._sizes(index, name)),)
        return found

    def _positions(self, index: int, name: str) -> list[Tensor]:
        """By process, where the numbers of its blocks lie among those of all."""
        sizes, grid = self._sizes(index, name), self.flat.grids[index]
        starts = {block: sum(sizes[:k]) for k, block in enumerate(grid.blocks)}
        lengths = dict(zip(grid.blocks, sizes, strict=True))
        device, found = self.flat.device, []
        for dealt in self.flat.dealt:
            ours = [torch.arange(starts[b], starts[b] + lengths[b], device=device) for b in dealt[index]]
            found.append(torch.cat(ours) if ours else torch.arange(0, device=device))
        return found

    def to_look_at(self, index: int, tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Nothing: they are of blocks, not of parameters."""
        return {}

    def saved(self, index: int, tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        found = {}
        for name, shapes in self.expected.items():
            if (shape := shapes[index]) is not None:
                ours = [tensors[part][name].reshape(-1) for part in self.parts_of([index]) if name in tensors[part]]
                mine = torch.cat(ours) if ours else self.flat.new()[:0]
                places = self._positions(index, name.removeprefix("scaling_"))
                found[name] = to_slices(self.flat.processes, mine, places, shape[0])
        return {**found, **self.straight(index)}

    def take(self, index: int, entry: Mapping[str, Any], tensors: list[dict[str, Tensor]]) -> None:
        for name, shapes in self.expected.items():
            if (shape := shapes[index]) is not None:
                given = entry[name] if entry[name].shape == shape else _whole(entry[name]).reshape(shape)
                mine = from_slices(self.flat.processes, given, self._positions(index, name.removeprefix("scaling_")))
                ours = [tensors[part][name] for part in self.parts_of([index]) if name in tensors[part]]
                for tensor, piece in zip(ours, torch.split(mine, [t.numel() for t in ours]), strict=True):
                    tensor.copy_(piece.view(tensor.shape))


def _whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def layout_for(flat: FlatParameters, scaling: Scaling) -> H0Layout:
    """Of an H0 on these vectors."""
    if isinstance(flat, FlatBlocks):
        return DealtH0(flat, scaling)
    if isinstance(flat, FlatShards) and needs_matrices(scaling):
        return ShardedH0(flat, scaling)
    return H0Layout(flat, scaling)
