"""Texts as sequences of symbols: by character or by word, split into training, validation and test."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from adaqn.experiments.data import files
from adaqn.experiments.errors import UserError
from adaqn.experiments.reading import content_text, is_there

TRAIN_SHARE = 0.9
SPLITS = ("train", "valid", "test")
DICKENS_SHA256 = "2326ff794eaaf3337c357df9129143150bb02afff7d8baf946a193b679c4e9f5"


@dataclass(frozen=True)
class Corpus:
    """Symbols by number, one tensor per split."""

    name: str
    sha256: str
    vocabulary: list[str]
    splits: dict[str, Tensor]

    @property
    def symbols(self) -> int:
        return sum(len(part) for part in self.splits.values())


def load_text(data: str, data_dir: Path | None = None) -> dict[str, str]:
    """split → text for data with splits of its own, ``{"all": text}`` for the rest."""
    if data == "embedded":
        topics = pydoc_data.topics.topics
        return {"all": "\n".join(topics[key] for key in sorted(topics))}
    if data == "dickens":
        return {"all": dickens(files.read(files.DATA_SETS["dickens"][0], data_dir))}
    if data == "nietzsche":
        return {"all": files.read(files.DATA_SETS["nietzsche"][0], data_dir).decode("utf-8")}
    if data == "ptb":
        contents = (files.read(file, data_dir) for file in files.DATA_SETS["ptb"])
        return {split: content.decode("utf-8") for split, content in zip(SPLITS, contents, strict=True)}
    return {"all": own_file(Path(data))}


def own_file(path: Path) -> str:
    if not is_there(path):
        names = ", ".join(["embedded", *(name for name in files.DATA_SETS if name != "mnist")])
        raise UserError(f"no text called {str(path)!r}: give one of {names}, or the path of a UTF-8 file")
    text = content_text(path)
    if not text:
        raise UserError(f"{path} is empty")
    return text


def dickens(raw: bytes) -> str:
    """The novel without the Gutenberg header and footer, from the file that Gutenberg gives."""
    text = raw.decode("ascii").replace("\r\n", "\n")
    novel = text[text.index("A TALE OF TWO CITIES\n\nA STORY") : text.index("End of the Project Gutenberg EBook")]
    novel = novel.rstrip("\n") + "\n"
    if hashlib.sha256(novel.encode()).hexdigest() != DICKENS_SHA256:
        raise UserError("the text derived from the Dickens file is not the expected one")
    return novel


def character_corpus(data: str, data_dir: Path | None = None, limit: int | None = None) -> Corpus:
    """The text by characters; ``limit`` takes the first so many in all."""
    parts = {split: list(text[: _share(limit, split)]) for split, text in load_text(data, data_dir).items()}
    return _corpus(data, parts, by_character=True)


def _share(limit: int | None, split: str) -> int | None:
    """How much of a limited text a split of its own may have: 90, 5 and 5 of a hundred, as where we split."""
    if limit is None or split == "all":
        return limit
    return max(1, round(limit * (0.9 if split == "train" else 0.05)))


def word_corpus(data: str, data_dir: Path | None = None, limit: int | None = None, largest: int = 10_000) -> Corpus:
    """The text by words, with ``<eos>`` for each end of a line; words beyond the ``largest`` vocabulary are ``<unk>``.

    Penn Treebank comes with its own 10,000 words. What is frequent is counted in the training split.
    """
    parts = {}
    for split, text in load_text(data, data_dir).items():
        words = [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]
        parts[split] = words[: _share(limit, split)]
    counts: dict[str, int] = {}
    for word in parts.get("train") or parts["all"][: int(TRAIN_SHARE * len(parts["all"]))]:
        counts[word] = counts.get(word, 0) + 1
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    known = set(frequent[:largest])
    if any(word not in known for words in parts.values() for word in words):
        known = {*frequent[: largest - 1], "<unk>"}
        parts = {split: [w if w in known else "<unk>" for w in words] for split, words in parts.items()}
    return _corpus(data, parts, by_character=False)


def _corpus(data: str, parts: dict[str, list[str]], *, by_character: bool) -> Corpus:
    sha256 = hashlib.sha256(
        "\0".join(("" if by_character else "\n").join(part) for part in parts.values()).encode()
    ).hexdigest()
    vocabulary = sorted({symbol for part in parts.values() for symbol in part})
    index = {symbol: i for i, symbol in enumerate(vocabulary)}
    numbers = {split: torch.tensor([index[s] for s in part], dtype=torch.long) for split, part in parts.items()}
    if "all" in numbers:
        everything = numbers["all"]
        first, second = int(TRAIN_SHARE * len(everything)), int(0.95 * len(everything))
        numbers = dict(zip(SPLITS, everything.tensor_split([first, second]), strict=True))
    return Corpus(data, sha256, vocabulary, numbers)


def sequences(symbols: Tensor, length: int, name: str) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of shape (count, length): consecutive pieces, each target one symbol later."""
    count = (len(symbols) - 1) // length
    if count < 1:
        raise UserError(f"{name} has {len(symbols)} symbols, fewer than one sequence of {length} and its last target")
    used = count * length
    return symbols[:used].view(count, length), symbols[1 : used + 1].view(count, length)
