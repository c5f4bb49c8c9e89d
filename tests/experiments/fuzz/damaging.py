"""Files with drawn damage: bits that flip, ends that are cut, parts that come twice, other things of the same name."""

import io
import json
import os
import shutil

import torch

from adaqn.experiments.training.claims import CLAIM

NUMBERS = (0, 1, -1, 10**13, 2**53, 10**400, 0.5, -0.5, 1e300, 1.7e308)
OTHERS = (None, True, "", "x", "5", [], [1], {}, {"a": 1}, "\ud800", "a\nb", "é")


def flip(rng, data):
    """One bit."""
    if not data:
        return b"\x01"
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def cut(rng, data):
    return data[: rng.randrange(len(data))] if data else data


def duplicate(rng, data):
    """A part of it, or all, once more."""
    start, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    return data + data if rng.random() < 0.3 else data[:end] + data[start:end] + data[end:]


BYTES = {"flip": flip, "cut": cut, "duplicate": duplicate}


def other_kind(rng, path):
    """Something else of that name."""
    path.unlink()
    kind = rng.choice(("nothing", "folder", "pipe", "loop", "empty", "noise"))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind != "nothing":
        path.write_bytes(rng.randbytes(300) if kind == "noise" else b"")
    return kind


def other_value(rng, value):
    """One entry, anywhere in it, of another type or size, gone, or one more."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value)) if isinstance(value, dict) else rng.randrange(len(value))
        choice = rng.random()
        if choice < 0.1:
            del value[key]
        elif choice < 0.15 and isinstance(value, dict):
            value["another"] = rng.choice(OTHERS)
        else:
            value[key] = other_value(rng, value[key])
        return value
    return rng.choice((*NUMBERS, *OTHERS))


def damage_values(rng, path):
    """Sound JSON with another value in it, without the checksum that would give it away."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
    number = rng.randrange(len(lines))
    values = json.loads(lines[number])
    for name in ("sealed", "sha256", "metrics_sha256"):
        values.pop(name, None)
    lines[number] = json.dumps(other_value(rng, values))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def other_tensor(rng, value):
    if isinstance(value, torch.Tensor) and rng.random() < 0.5:
        return rng.choice(
            (value[None], value.flatten()[:1], value.to(torch.int64), value * float("nan"), torch.empty(0),
             value.to("meta"), value.to(torch.complex64))
        )  # fmt: skip
    return rng.choice(
        (None, "x", [], {}, -1, 10**9, 1.5, True, torch.ones(2, 3), torch.zeros(()), torch.ones(2).bool())
    )


def other_entry(rng, value):
    """Of a state: one entry, anywhere in it."""
    if isinstance(value, dict | list) and value and rng.random() < 0.95:
        key = rng.choice(sorted(value, key=str)) if isinstance(value, dict) else rng.randrange(len(value))
        if rng.random() < 0.1:
            del value[key]
        else:
            value[key] = other_entry(rng, value[key])
        return value
    return other_tensor(rng, value)


def damage_state(rng, path):
    """A checkpoint with another entry, as a version without checksums would have saved it."""
    state = torch.load(path, weights_only=True)
    state = other_entry(rng, state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path.write_bytes(buffer.getvalue())


def damage(rng, path):
    """Draw one, do it; returns its name."""
    kinds = [*BYTES, *BYTES, "kind"]
    if path.suffix in (".json", ".jsonl") or path.stem == CLAIM:
        kinds += ["value"] * 4
    if path.suffix == ".pt":
        kinds += ["entry"] * 4
    kind = rng.choice(kinds)
    if kind in BYTES:
        path.write_bytes(BYTES[kind](rng, path.read_bytes()))
    elif kind == "kind":
        return other_kind(rng, path)
    elif kind == "entry":
        damage_state(rng, path)
    else:
        damage_values(rng, path)
    return kind


def restored(good, folder):
    """The folder as it was, whatever was made of it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
