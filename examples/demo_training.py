"""What the demonstration runs: one model, three optimizers, the same batches for each of them in turn."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

from adaqn import AdaQN, Monitor

LAYERS, UNITS, SEQUENCE, BATCH, MONITORED = 3, 100, 50, 32, 128
WEIGHT_SCALE = 0.1  # the paper's N(0, 0.01) gives the variance

# Five step sizes each, a factor of two apart, 1,200 steps, seed 0; the lowest final validation loss decided.
# `--tune` repeats the search (about ten minutes; the figures below are those of Python 3.11's text).
# All else is each method's default: the paper's for AdaQN, torch's for the others.
GRIDS = {
    "AdaQN": (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2),  # 1.804, 1.650, 1.664, 3.354, 3.300 nats per character
    "Adagrad": (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2),  # 2.304, 2.051, 1.860, 1.832, 2.339
    "Adam": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3),  # 1.860, 1.679, 1.577, 1.554, 1.683
}
STEP_SIZES = {"AdaQN": 5e-3, "Adagrad": 2e-2, "Adam": 4e-3}


@dataclass(frozen=True)
class Data:
    """Rows of SEQUENCE + 1 characters by number: the inputs, and the targets one further on."""

    sha256: str
    characters: int
    vocabulary: int
    train: Tensor
    validation: Tensor
    test: Tensor

    def training_sample(self, count: int, rng: torch.Generator) -> Tensor:
        return self.train[torch.randperm(len(self.train), generator=rng)[:count]]


def load_data() -> Data:
    """The text that every Python carries, its help topics; 90/5/5 by position."""
    text = "".join(topics[name] for name in sorted(topics))
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    whole = torch.tensor([numbers[character] for character in text])
    parts = whole.tensor_split([len(text) * 90 // 100, len(text) * 95 // 100])
    splits = [part.unfold(0, SEQUENCE + 1, SEQUENCE) for part in parts]
    return Data(hashlib.sha256(text.encode()).hexdigest(), len(text), len(numbers), *splits)


def generator(seed: int, purpose: str) -> torch.Generator:
    """A stream of random numbers for each purpose, so that none depends on how another is used."""
    return torch.Generator().manual_seed(random.Random(f"{purpose} {seed}").getrandbits(63))


def batches(train: Tensor, seed: int) -> Iterator[Tensor]:
    """Epoch after epoch, each in an order of its own."""
    rng = generator(seed, "order of the batches")
    while True:
        for rows in torch.randperm(len(train), generator=rng).split(BATCH)[:-1]:
            yield train[rows]


class CharRNN(nn.Module):
    """A stack of tanh layers; every sequence starts from zeros."""

    def __init__(self, vocabulary: int, rng: torch.Generator) -> None:
        super().__init__()
        self.rnn = nn.RNN(vocabulary, UNITS, LAYERS, nonlinearity="tanh", batch_first=True)
        self.head = nn.Linear(UNITS, vocabulary)
        for weights in self.parameters():
            nn.init.normal_(weights, std=WEIGHT_SCALE, generator=rng)

    def forward(self, characters: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(characters, self.rnn.input_size).float()
        return self.head(self.rnn(one_hot)[0])


def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats per character."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(name: str, model: nn.Module, lr: float, monitored: Tensor) -> torch.optim.Optimizer:
    if name == "Adagrad":
        return torch.optim.Adagrad(model.parameters(), lr=lr)
    if name == "Adam":
        return torch.optim.Adam(model.parameters(), lr=lr)
    # The paper's options. Its curvature test skips no pair here, so curvature_test="scale_free" is not needed.
    return AdaQN(model.parameters(), lr=lr, monitor=Monitor(model, loss_fn, (monitored[:, :-1], monitored[:, 1:])))


@dataclass(frozen=True)
class Point:
    """A place on a curve."""

    step: int
    seconds: float
    validation: float


class Run:
    """One optimizer at work on its own copy of the model."""

    def __init__(self, name: str, lr: float, data: Data, seed: int) -> None:
        self.name, self.lr, self.data = name, lr, data
        self.model = CharRNN(data.vocabulary, generator(seed, "weights"))
        monitored = data.training_sample(MONITORED, generator(seed, "monitoring set"))
        self.optimizer = make_optimizer(name, self.model, lr, monitored)
        self.train_sample = data.training_sample(len(data.validation), generator(seed, "training loss"))
        self.steps, self.seconds, self.loss = 0, 0.0, float("nan")
        self.points: list[Point] = []

    def advance(self, batch: Tensor) -> None:
        """One step. Only this is on the clock, AdaQN's monitoring with it."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = loss_fn(self.model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.seconds += time.perf_counter() - start
        self.steps += 1
        self.loss = loss.item() if self.steps == 1 else 0.95 * self.loss + 0.05 * loss.item()

    @torch.no_grad()
    def evaluate(self, sequences: Tensor) -> float:
        return loss_fn(self.model(sequences[:, :-1]), sequences[:, 1:]).item()

    def mark(self) -> None:
        self.points.append(Point(self.steps, self.seconds, self.evaluate(self.data.validation)))

    def final_losses(self) -> tuple[float, float, float]:
        """Training (on a sample as large as the validation split), validation and test."""
        return self.evaluate(self.train_sample), self.points[-1].validation, self.evaluate(self.data.test)


def train(runs: list[Run], steps: int, seed: int, on_step: Callable[[Run], None], stop: Callable[[], bool]) -> None:
    """Step by step in turn: whatever else the machine is doing falls on all of them alike."""
    data, every = runs[0].data, max(10, steps // 30)
    for run in runs:
        run.mark()
    for step, batch in zip(range(1, steps + 1), batches(data.train, seed), strict=False):
        for run in runs:
            run.advance(batch)
            if step % every == 0:
                run.mark()
            on_step(run)
        if stop():
            break
    for run in runs:
        if run.points[-1].step < run.steps:
            run.mark()
