"""One run in several processes, under ``torchrun``: each trains on its share of every batch, the first one writes.

The library itself needs none of this; here are only the things that a training program does around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from adaqn.experiments.errors import UserError
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.whole_settings import is_whole

WAIT_VARIABLE = "ADAQN_WAIT_SECONDS"
"""How long a process waits for another before it gives up, if not 300 seconds."""
ONE_PROCESS_ONLY = ("lbfgs", "sfo", "hf", "kfac")
"""Optimizers that look at more than averaged gradients: each process would see, and do, something else."""


class Team:
    """One process alone."""

    rank, count = 0, 1

    @property
    def writes(self) -> bool:
        """Is this the process that measures, tells and writes?"""
        return self.rank == 0

    def share(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """What this process takes of a batch."""
        x, y = (tensor.tensor_split(self.count)[self.rank] for tensor in batch)
        return x, y

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model with gradients that are averaged over the processes."""
        return model

    def totals(self, loss: Tensor, stops: bool) -> tuple[Tensor, bool]:
        """(The mean of the losses of all processes, does any of them want to stop?)"""
        return loss, stops

    def wait(self) -> None:
        """Until all processes are here."""

    def check(self, config: RunConfig) -> None:
        """Can this run be shared out?"""


class Torchrun(Team):
    """The processes that ``torchrun`` has started."""

    def __init__(self, device: str) -> None:
        self.rank, self.count, self.device = dist.get_rank(), dist.get_world_size(), device

    def wrapped(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model)

    def totals(self, loss: Tensor, stops: bool) -> tuple[Tensor, bool]:
        values = torch.stack([loss.double(), torch.tensor(float(stops), device=loss.device).double()])
        dist.all_reduce(values)
        return (values[0] / self.count).to(loss.dtype), bool(values[1] > 0)

    def wait(self) -> None:
        dist.barrier()

    def check(self, config: RunConfig) -> None:
        if is_whole(config.task):
            raise UserError(f"{config.task} evaluates the whole batch in one process: start it without torchrun")
        assert config.batch_size is not None
        if config.batch_size % self.count:
            raise UserError(f"batch_size {config.batch_size} cannot be shared out equally to {self.count} processes")
        if config.monitor_size < self.count:
            raise UserError(f"monitor_size {config.monitor_size} is less than one example for {self.count} processes")
        if config.carry_state:
            raise UserError("carry_state keeps the hidden state of whole batches: run it in one process")
        if config.optimizer in ONE_PROCESS_ONLY:
            raise UserError(f"{config.optimizer} runs in one process only: start it without torchrun")
        if config.options.get("shard_history"):
            raise UserError("shard_history is for programs that save with torch.distributed.checkpoint: leave it out")


ALONE = Team()


def check_command(arguments: list[str]) -> None:
    """Is this command one for several processes? Each of them would run the others for itself."""
    if _is_shared() and arguments[:1] not in ([], ["train"]):
        raise UserError(f"under torchrun there is 'adaqn train' alone: start 'adaqn {arguments[0]}' without it")


def _is_shared() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and _counted("WORLD_SIZE", 1) > 1


def restarts() -> int:
    """How often ``torchrun`` has started these processes anew."""
    return _counted("TORCHELASTIC_RESTART_COUNT", 0)


def _counted(variable: str, usual: int) -> int:
    """What torchrun says in a variable of the environment."""
    said = os.environ.get(variable, str(usual))
    if not (said.isascii() and said.isdecimal() and len(said) < 10):
        raise UserError(f"{variable} must be a whole number, as torchrun sets it, got {said!r}")
    return int(said)


@contextmanager
def team(device: str) -> Iterator[Team]:
    """The processes at work within the block; one that is lost is one line, not a wait without end."""
    if not _is_shared():
        yield ALONE
        return
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    _meet()
    try:
        yield Torchrun(device)
        dist.barrier()
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        raise UserError(
            f"process {os.environ['RANK']}: another process of this run ended or did not answer within {_patience():g} "
            "seconds, see its own message; 'torchrun ... -m adaqn train --resume --out FOLDER' goes on"
        ) from error
    finally:
        dist.destroy_process_group()


def _meet() -> None:
    """A group of all processes.

    torchrun keeps one store over its restarts, with the addresses of dead processes in it: a prefix sets them apart.
    """
    patience = timedelta(seconds=_patience())
    store, rank, count = next(rendezvous("env://", timeout=patience))
    fresh = dist.PrefixStore(f"attempt {restarts()}", store)  # type: ignore[attr-defined]
    dist.init_process_group(store=fresh, rank=rank, world_size=count, timeout=patience)


def _is_lost_connection(error: Any) -> bool:
    words = ("gloo", "nccl", "connection", "timed out")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


def _patience() -> float:
    text = os.environ.get(WAIT_VARIABLE, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise UserError(f"{WAIT_VARIABLE} must be a positive number of seconds, got {text!r}")
    return seconds
