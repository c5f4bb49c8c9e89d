"""The tasks: data in batches by number, a model, losses per example, and what is reported of them.

A batch is a function of (seed, epoch, index): every optimizer sees the same ones, and a resumed run goes on
with the one that is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from adaqn.experiments.data.digits import load_digits
from adaqn.experiments.data.text import SPLITS, character_corpus, sequences, word_corpus
from adaqn.experiments.errors import UserError
from adaqn.experiments.problems.convolutional import Convolutional
from adaqn.experiments.problems.networks import CONV, TRANSFORMER, FeedForward, Hidden, Recurrent, initialise
from adaqn.experiments.problems.transformer import Transformer
from adaqn.experiments.training.config import RunConfig

Batch = tuple[Tensor, Tensor]
EVALUATION_BATCH = 256
SLICE_ELEMENTS = 2_000_000
"""Of logits: 8 MB."""


class Task:
    """Examples in memory, one (inputs, targets) per split; the subclasses say what they are."""

    unit = "nats"
    recurrent_text = False

    def __init__(self, config: RunConfig, splits: dict[str, Batch], sha256: str) -> None:
        self.config, self.sha256 = config, sha256
        self.share: Callable[[Batch], Batch] = whole  # a run of several processes says what each takes of a batch
        self.splits = {split: (self.on_device(x), self.on_device(y)) for split, (x, y) in splits.items()}
        self.count = len(self.splits["train"][0])
        if self.count < config_batch(config):
            raise UserError(
                f"{config.data} gives {self.count} training examples, fewer than one batch of {config.batch_size}"
            )
        self.steps_per_epoch = self.count // config_batch(config)

    def on_device(self, values: Tensor) -> Tensor:
        """In the precision of the run, if they are no whole numbers."""
        device = torch.device(self.config.device)
        return values.to(device, precision_of(self.config)) if values.is_floating_point() else values.to(device)

    def build(self) -> nn.Module:
        raise TypeError(f"{type(self).__name__} has no model")

    def initialise(self, model: nn.Module, generator: torch.Generator) -> None:
        if isinstance(model, Transformer | Convolutional):
            model.initialise(generator)
        else:
            initialise(model, self.config.spread, generator)

    def model(self) -> nn.Module:
        """A fresh model with the weights of this seed."""
        model = self.build()
        self.initialise(model, torch.Generator().manual_seed(self.config.seed))
        return model.to(self.config.device, precision_of(self.config))

    def batch(self, step: int) -> Batch:
        """The batch of that step, counted from the start of training."""
        epoch, index = divmod(step, self.steps_per_epoch)
        size = config_batch(self.config)
        x, y = self.splits["train"]
        if self.config.carry_state:  # stream i is the i-th stretch of the text; a batch is one piece of each
            rows = torch.arange(size) * self.steps_per_epoch + index
        else:
            rows = self._order(epoch)[index * size : (index + 1) * size]
        return x[rows], y[rows]

    def continues(self, step: int) -> bool:
        """Does the text of this step follow on that of the step before?"""
        return self.config.carry_state and step % self.steps_per_epoch != 0

    def monitoring_set(self) -> Batch:
        """Examples of the training split, the same throughout."""
        x, y = self.splits["train"]
        generator = torch.Generator().manual_seed(self.config.seed + 1_000_003)
        rows = torch.randperm(self.count, generator=generator)[: self.config.monitor_size]
        return self.share((x[rows], y[rows]))

    @lru_cache(maxsize=2)  # noqa: B019 - a task lives as long as its run
    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.config.seed * 100_003 + epoch)
        return torch.randperm(self.count, generator=generator)

    def losses(self, output: tuple[Tensor, Hidden], target: Tensor) -> Tensor:
        """One loss per example."""
        return cross_entropy(output[0], target, reduction="none")

    def penalty(self, model: nn.Module) -> Tensor | None:
        """What is added to the mean of the losses: a function of the weights alone."""
        return None

    def metrics(self, loss: float, correct: float) -> dict[str, float]:
        """What is reported beside the loss."""
        return {}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, split: str) -> dict[str, float]:
        """The mean loss over a split and what follows from it."""
        x, y = self.splits[split]
        was_training = model.training
        model.eval()
        total, correct, count, hidden = 0.0, 0.0, 0, None
        for rows in self._evaluation_rows(len(x)):
            output = model(x[rows], hidden)
            hidden = output[1] if self.config.carry_state else None
            losses = self.losses(output, y[rows])
            total += float(losses.double().sum())
            correct += self.correct(output[0], y[rows])
            count += len(losses)
        model.train(was_training)
        loss = total / count
        return {"loss": loss, **self.metrics(loss, correct / count)}

    def correct(self, output: Tensor, target: Tensor) -> float:
        return 0.0

    def _evaluation_rows(self, count: int) -> list[Tensor]:
        if not self.config.carry_state:
            return list(torch.split(torch.arange(count), EVALUATION_BATCH))
        streams = min(config_batch(self.config), count)
        pieces = count // streams
        return [torch.arange(streams) * pieces + i for i in range(pieces)]


class LanguageModel(Task):
    """The next symbol of a text, by character or by word."""

    recurrent_text = True

    def __init__(self, config: RunConfig, data_dir: Path | None = None) -> None:
        if config.task == "word-lm":
            assert config.vocabulary is not None
            corpus = word_corpus(config.data, data_dir, config.limit, config.vocabulary)
        else:
            corpus = character_corpus(config.data, data_dir, config.limit)
        assert config.length is not None
        splits = {split: sequences(corpus.splits[split], config.length, f"{config.data} ({split})") for split in SPLITS}
        super().__init__(config, splits, corpus.sha256)
        self.corpus = corpus
        self.unit = "nats per " + ("word" if config.task == "word-lm" else "character")

    def build(self) -> nn.Module:
        c, size = self.config, len(self.corpus.vocabulary)
        assert c.layers is not None
        assert c.hidden is not None
        if c.model == TRANSFORMER:
            assert c.length is not None
            return Transformer(c.layers, c.hidden, size, c.length)
        return Recurrent(c.model, c.layers, c.hidden, size, vocabulary=size)

    def losses(self, output: tuple[Tensor, Hidden], target: Tensor) -> Tensor:
        return symbol_losses(output[0].flatten(0, 1), target.flatten()).view(target.shape).mean(1)

    def metrics(self, loss: float, correct: float) -> dict[str, float]:
        if self.config.task == "word-lm":
            return {"perplexity": math.exp(min(loss, 700.0))}
        return {"bits": loss / math.log(2.0)}


class Digits(Task):
    """The digit in an image: pixel by pixel for a recurrent net, or all at once."""

    def __init__(self, config: RunConfig, data_dir: Path | None = None) -> None:
        digits = load_digits(config.data, data_dir, config.side)
        splits = {}
        for split, (images, labels) in digits.splits.items():
            x = images.flatten(1)[:, :, None] if config.task == "pixel-mnist" else images.flatten(1)
            kept = config.limit if split == "train" else None
            splits[split] = (x[:kept], labels[:kept])
        super().__init__(config, splits, digits.sha256)

    def build(self) -> nn.Module:
        c = self.config
        assert c.layers is not None
        assert c.hidden is not None
        if c.task == "pixel-mnist":
            return Recurrent(c.model, c.layers, c.hidden, 10, features=1)
        pixels = self.splits["train"][0].shape[1]
        if c.model == CONV:
            return Convolutional(c.layers, c.hidden, self._side(pixels), 10)
        return FeedForward(c.model, c.layers, c.hidden, pixels, 10)

    def _side(self, pixels: int) -> int:
        """Of the images; every layer halves it."""
        side, layers = math.isqrt(pixels), self.config.layers or 0
        if side >> min(layers, side) < 1:
            most = side.bit_length() - 1
            raise UserError(
                f"every layer halves images of {side} × {side}: layers must be at most {most}, got {layers}"
            )
        return side

    def metrics(self, loss: float, correct: float) -> dict[str, float]:
        return {"accuracy": correct}

    def correct(self, output: Tensor, target: Tensor) -> float:
        return float((output.argmax(1) == target).sum())


class Addition(Task):
    """The sum of the two marked numbers in a sequence (Hochreiter and Schmidhuber); mean squared error."""

    unit = "mean squared error"

    def __init__(self, config: RunConfig, data_dir: Path | None = None) -> None:
        if config.data != "embedded":
            raise UserError(f"the addition problem is generated: leave data at 'embedded', not {config.data!r}")
        assert config.length is not None
        if config.length < 2:
            raise UserError(f"the addition problem needs a length of at least 2, got {config.length}")
        sizes = {"train": config.limit or 10_000, "valid": 1_000, "test": 1_000}
        splits = {split: addition_problem(sizes[split], config.length, seed) for seed, split in enumerate(SPLITS)}
        sha256 = f"generated:addition:{config.length}:{sizes['train']}"
        super().__init__(config, splits, sha256)

    def build(self) -> nn.Module:
        c = self.config
        assert c.layers is not None
        assert c.hidden is not None
        return Recurrent(c.model, c.layers, c.hidden, 1, features=2)

    def losses(self, output: tuple[Tensor, Hidden], target: Tensor) -> Tensor:
        return (output[0][:, 0] - target).square()


def symbol_losses(logits: Tensor, target: Tensor) -> Tensor:
    """The cross entropy of every row, in slices that stay in a processor's cache; the same to the last bit.

    For 1,600 rows of 10,000 words, forward and backward read and write 64 MB several times otherwise.
    """
    rows = max(1, SLICE_ELEMENTS // logits.shape[1])
    if logits.device.type != "cpu" or len(logits) <= rows:
        return cross_entropy(logits, target, reduction="none")
    slices = zip(torch.split(logits, rows), torch.split(target, rows), strict=True)
    return torch.cat([cross_entropy(*pair, reduction="none") for pair in slices])


def whole(batch: Batch) -> Batch:
    """The share of one process."""
    return batch


def addition_problem(count: int, length: int, seed: int) -> Batch:
    """Numbers uniform in [0, 1] beside marks: one in the first half, one in the second; the target is their sum."""
    generator = torch.Generator().manual_seed(7_919 + seed)
    numbers = torch.rand(count, length, generator=generator)
    first = torch.randint(0, length // 2, (count,), generator=generator)
    second = torch.randint(length // 2, length, (count,), generator=generator)
    rows = torch.arange(count)
    marks = torch.zeros(count, length)
    marks[rows, first] = marks[rows, second] = 1.0
    return torch.stack([numbers, marks], dim=2), numbers[rows, first] + numbers[rows, second]


def precision_of(config: RunConfig) -> torch.dtype:
    precision: torch.dtype = getattr(torch, config.dtype)
    return precision


def config_batch(config: RunConfig) -> int:
    assert config.batch_size is not None, "the configuration was not completed"
    return config.batch_size
