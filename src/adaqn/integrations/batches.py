"""A batch of the training loader for the monitor: always the same one, and the training never notices."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from adaqn.evaluation.random_state import seeded

EXAMPLES = 128
SEED = 0


def training_batch(loader: Any, examples: int = EXAMPLES) -> Any:
    """Examples of a ``DataLoader``'s training data, put together as the loader does it.

    A copy of the loader's own sampler draws them, so never from outside a subset, and under DDP from this process's
    share. That and augmentations begin at a random state of their own: a resumed run finds the same batch, and the
    order of the training data and every random generator stay as they are.

    Args:
        loader: a ``DataLoader`` of the training split, with a dataset that can be indexed. For an ``IterableDataset``
            there is no such batch: keep one yourself, beside your checkpoints.
        examples: how many, at most; they need not be the loader's batch size.

    >>> from torch.utils.data import TensorDataset
    >>> loader = DataLoader(TensorDataset(torch.arange(100), torch.arange(100)), batch_size=8, shuffle=True)
    >>> inputs, target = training_batch(loader, 16)
    >>> len(inputs), torch.equal(inputs, training_batch(loader, 16)[0])
    (16, True)
    """
    if examples < 1:
        raise ValueError(f"examples must be at least 1, got {examples}: a hundred or so judge a cycle well")
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        kind = type(loader.dataset if isinstance(loader, DataLoader) else loader).__name__
        raise TypeError(
            f"no examples can be picked from {kind}: that needs one DataLoader with a dataset that can be indexed. "
            "Otherwise keep a batch of the training split yourself, the same in every run, and give it as batch="
        )
    with seeded(SEED):
        if loader.batch_sampler is None:  # every item is a batch
            return loader.collate_fn(loader.dataset[next(iter(_fresh(loader.sampler, loader)))])
        batches = iter(_fresh(loader.batch_sampler, loader))
        drawn = itertools.islice(itertools.chain.from_iterable(batches), examples)
        indices = list(dict.fromkeys(drawn))  # a sampler may draw with replacement
        if not indices:
            raise ValueError("the training loader is empty: there is nothing to monitor")
        return loader.collate_fn(_fetch(loader.dataset, indices))


def on_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors there."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: on_device(value, device) for name, value in batch.items()}
    return type(batch)(on_device(part, device) for part in batch) if type(batch) in (list, tuple) else batch


def _fresh(sampler: Any, loader: DataLoader[Any]) -> Any:
    """A copy of a sampler as at the start of a run: a resumed one has another epoch, and other random states."""
    copied = copy.deepcopy(sampler, {id(loader.dataset): loader.dataset})  # the data itself is not copied
    for part in _parts(copied):
        if hasattr(part, "set_epoch"):
            part.set_epoch(0)
        for value in vars(part).values():
            if isinstance(value, torch.Generator):
                value.manual_seed(SEED)
    return copied


def _parts(sampler: Any) -> Iterator[Any]:
    """A sampler and those inside it: ``BatchSampler.sampler``, Accelerate's ``BatchSamplerShard.batch_sampler``."""
    while sampler is not None and hasattr(sampler, "__dict__"):
        yield sampler
        inner = vars(sampler)
        sampler = inner.get("sampler", inner.get("batch_sampler"))


def _fetch(dataset: Any, indices: list[Any]) -> Any:
    if callable(getattr(dataset, "__getitems__", None)):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]
