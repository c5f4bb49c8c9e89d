"""The monitor's batch: of the training data alone, always the same one, and nothing else notices."""

import random

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from adaqn.integrations import training_batch

COUNT = 60
data = TensorDataset(torch.arange(COUNT), -torch.arange(COUNT))


def own():
    return torch.Generator().manual_seed(5)


LOADERS = {
    "in order": lambda: DataLoader(data, 8),
    "shuffled": lambda: DataLoader(data, 8, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(data, 8, shuffle=True, generator=own()),
    "a part": lambda: DataLoader(data, 8, sampler=SubsetRandomSampler(range(20), generator=own())),
    "weighted": lambda: DataLoader(data, 8, sampler=WeightedRandomSampler([1.0] * COUNT, 40, generator=own())),
    "shared out": lambda: DataLoader(data, 8, sampler=DistributedSampler(data, 2, 1)),
    "batches of its own": lambda: DataLoader(data, batch_sampler=BatchSampler(SubsetRandomSampler(range(20)), 3, True)),
    "workers": lambda: DataLoader(data, 8, shuffle=True, num_workers=2),
}


def epoch(loader):
    torch.manual_seed(1)
    return [batch[0].tolist() for _ in range(2) for batch in loader]


@pytest.mark.parametrize("name", list(LOADERS))
def test_the_order_of_the_training_data_stays_as_it_was(name):
    expected = epoch(LOADERS[name]())
    loader = LOADERS[name]()
    training_batch(loader, 16)
    assert epoch(loader) == expected


@pytest.mark.parametrize("name", list(LOADERS))
def test_a_resumed_run_finds_the_same_batch(name):
    """There the generators are elsewhere, and the epoch is another."""
    first = training_batch(LOADERS[name](), 16)
    loader = LOADERS[name]()
    if name != "workers":
        epoch(loader)
    torch.manual_seed(99)
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(7)
    again = training_batch(loader, 16)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert 8 < len(first[0]) <= 16  # more than one batch of the loader


def test_nothing_from_outside_a_subset():
    for name in ("a part", "batches of its own"):
        inputs, _ = training_batch(LOADERS[name](), 100)
        assert inputs.max() < 20
    _, targets = training_batch(LOADERS["shared out"](), 100)
    assert len(targets) == COUNT // 2


class Augmented(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index + torch.rand(()), random.random()


def test_augmentation_is_the_same_and_takes_no_random_numbers():
    torch.manual_seed(3)
    random.seed(3)
    expected = float(torch.rand(())), random.random()
    torch.manual_seed(3)
    random.seed(3)
    a, b = (training_batch(DataLoader(Augmented(), shuffle=True)) for _ in range(2))
    assert (float(torch.rand(())), random.random()) == expected
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


def test_items_that_are_batches():
    batches = [(torch.full((4,), float(i)), torch.zeros(4)) for i in range(3)]
    inputs, _ = training_batch(DataLoader(batches, batch_size=None))
    assert torch.equal(inputs, batches[0][0])


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)


@pytest.mark.parametrize(
    "loader, error, match",
    [
        (DataLoader(Stream()), TypeError, "Stream.*batch="),
        ([1, 2, 3], TypeError, "list.*batch="),
        (DataLoader(TensorDataset(torch.ones(0))), ValueError, "empty"),
    ],
)
def test_what_cannot_be_picked_from_is_said(loader, error, match):
    with pytest.raises(error, match=match):
        training_batch(loader)


def test_at_least_one_example():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        training_batch(DataLoader(data), 0)
