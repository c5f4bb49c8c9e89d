"""``adaqn sample``: text from a trained language model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from adaqn.experiments.commands.options import AsJson, DataDir, Device, Threads
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import entry, known_classes, prepare_model
from adaqn.experiments.problems.catalogue import make_task
from adaqn.experiments.problems.tasks import LanguageModel
from adaqn.experiments.reading import is_there
from adaqn.experiments.training.checkpoint import load_checkpoint, load_model
from adaqn.experiments.training.config import LARGEST_SEED, check_machine
from adaqn.experiments.training.folder import CHECKPOINT, check_of_run, stored_config
from adaqn.experiments.training.memory import check_run
from adaqn.experiments.training.options import make_optimizer
from adaqn.experiments.training.storage import json_text

MOST_SYMBOLS = 10_000_000


def sample(
    folder: Annotated[Path, typer.Argument(help="Folder of a run of char-lm or word-lm.")],
    count: Annotated[int, typer.Option(help="Number of symbols to draw.")] = 400,
    prompt: Annotated[str, typer.Option(help="Beginning of the text.")] = "",
    temperature: Annotated[float, typer.Option(help="Below 1: more predictable; above 1: more random.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the random draw.")] = 0,
    threads: Threads = 1,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Generate text with a trained language model."""
    text = drawn_text(
        folder, count, prompt=prompt, temperature=temperature, seed=seed, data_dir=data_dir, threads=threads,
        device=device,
    )  # fmt: skip
    print(json_text({"folder": str(folder), "seed": seed, "text": text}, indent=2) if as_json else text)


@torch.no_grad()
def drawn_text(
    folder: Path,
    count: int,
    *,
    prompt: str = "",
    temperature: float = 1.0,
    seed: int = 0,
    data_dir: Path | None = None,
    threads: int = 1,
    device: str = "cpu",
) -> str:
    """``count`` symbols after the prompt, from the last checkpoint of the run in ``folder``."""
    if not 1 <= count <= MOST_SYMBOLS:
        raise UserError(f"count must be from 1 to {MOST_SYMBOLS}, got {count}")
    if not temperature > 0:
        raise UserError(f"the temperature must be positive, got {temperature}")
    if not 0 <= seed <= LARGEST_SEED:
        raise UserError(f"seed must be from 0 to {LARGEST_SEED}, got {seed}")
    torch.set_num_threads(check_machine(threads, device))
    config = replace(stored_config(folder), device=device)
    check_run(config.complete())
    task = make_task(config.complete(), data_dir)
    if not isinstance(task, LanguageModel):
        raise UserError(f"the run in {folder} is of {config.task}, which is not a language model")
    if not is_there(folder / CHECKPOINT):
        raise UserError(f"the run in {folder} has no checkpoint yet")
    model = prepare_model(config.optimizer, task.model())
    checkpoint = load_checkpoint(folder / CHECKPOINT, known_classes(config.optimizer))
    check_of_run(folder / CHECKPOINT, checkpoint["identity"])
    if checkpoint["data_sha256"] != task.sha256:
        raise UserError(f"{config.data} has changed since the run in {folder} was made: its vocabulary differs")
    load_model(model, checkpoint, folder / CHECKPOINT)
    if entry(config.optimizer).schedule_free:  # its losses are those of an average
        optimizer = make_optimizer(config.optimizer, config.lr, config.options, model, task)
        optimizer.load_state_dict(checkpoint["optimizer"])
        optimizer.eval()  # type: ignore[attr-defined]
    model.eval()
    by_word = config.task == "word-lm"
    symbols = prompt.split() if by_word else list(prompt)
    index = {symbol: i for i, symbol in enumerate(task.corpus.vocabulary)}
    unknown = [symbol for symbol in symbols if symbol not in index]
    if unknown:
        raise UserError(f"the prompt has {unknown[0]!r}, which is not in the vocabulary of {config.data}")
    generator = torch.Generator().manual_seed(seed)
    fed = torch.tensor([[index[s] for s in symbols] or [int(task.corpus.splits["train"][0])]], device=device)
    hidden = None
    drawn: list[str] = []
    for _ in range(count):
        logits, hidden = model(fed, hidden)
        chances = torch.softmax(logits[0, -1].double().cpu() / temperature, dim=0)
        if not bool(chances.isfinite().all()):
            raise UserError(
                f"the model in {folder} gives no probabilities at temperature {temperature}: has it diverged?"
            )
        chosen = int(torch.multinomial(chances, 1, generator=generator))
        drawn.append(task.corpus.vocabulary[chosen])
        fed = torch.tensor([[chosen]], device=device)
    return prompt + ((" " if prompt else "") + " ".join(drawn).replace("<eos>", "\n") if by_word else "".join(drawn))
