"""Parameters, gradients and damage, drawn from a seeded generator: what the fuzzing of the optimizers tries."""

import copy
import math
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

SHAPES = [(), (1,), (3,), (5,), (2, 3), (4, 4), (3, 1, 2), (0,)]
REAL = [torch.float32, torch.float64]
DTYPES = [*REAL, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]
VALUES = [0.0, 1e-40, 1e-20, 1.0, 1e30, math.inf, math.nan]


def parameters(random: Random, dtypes: list[torch.dtype]) -> list[nn.Parameter]:
    """One to five of any shapes; where complex ones are drawn, one lies behind an odd number of reals."""
    found = [_parameter(random, random.choice(dtypes), random.choice(SHAPES)) for _ in range(random.randint(1, 4))]
    if any(p.is_complex() for p in found):
        found.insert(0, _parameter(random, random.choice([d for d in dtypes if not d.is_complex]), (3,)))
    return found if any(p.numel() for p in found) else [*found, _parameter(random, dtypes[0], (2,))]


def _parameter(random: Random, dtype: torch.dtype, shape: tuple[int, ...]) -> nn.Parameter:
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return nn.Parameter(torch.randn(shape, dtype=wide, generator=generator).to(dtype))


def gradient(random: Random, p: Tensor) -> Tensor | None:
    """All of one value, or an ordinary one with such a value somewhere in it; sometimes none."""
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    usual = torch.randn(p.shape, generator=generator).to(p.dtype)
    kind, value = random.choice(["all", "one", "usual", "usual", "none"]), random.choice(VALUES)
    if kind == "none" and random.random() < 0.5:
        return None
    as_p = torch.tensor(value, dtype=torch.float64).to(p.dtype)  # infinite where the dtype cannot hold it
    if kind == "all":
        return as_p.expand(p.shape).clone()
    if kind == "one" and p.numel():
        usual.reshape(-1)[random.randrange(p.numel())] = as_p
    return usual


# ---------------------------------------------------------------------- damage to a saved state


def nested_list(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def freed(t: Tensor) -> Tensor:
    """Whoever reads it reads memory that is not there."""
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


def fake(t: Tensor) -> Tensor:
    with FakeTensorMode() as mode:
        return mode.from_tensor(t)


NO_NUMBERS: list[Any] = [
    "abc", None, math.nan, math.inf, -1, -1.0, 3.5, 10**400, 10**30, -(10**400), [1], {}, b"x", 1j, (), "3",
    torch.tensor(3), torch.tensor(3.5), torch.ones(2), torch.ones((), device="meta"), torch.ones(1).to_sparse(), 0, 1,
    True, 2.0, 1e-300, 1.7e308, np.complex64(1), bytearray(b"1"), torch.tensor(1.0).to(torch.float8_e4m3fn),
    nn.Parameter(torch.tensor(1.0)),
]  # fmt: skip


def _quantized(t: Tensor) -> Tensor:
    return torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8)


TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "meta": lambda t: t.to("meta"),
    "freed": freed,
    "fake": fake,
    "sparse": lambda t: t.to_sparse(),
    "csr": lambda t: t.reshape(1, -1).to_sparse_csr(),
    "quantized": _quantized,
    "nested": lambda t: torch.nested.nested_tensor([t.reshape(-1)]),
    "complex": lambda t: t.to(torch.complex64),
    "whole": lambda t: t.long(),
    "flags": lambda t: t > 0,
    "wider": lambda t: t.double() if t.is_floating_point() else t,
    "longer": lambda t: torch.cat([t.reshape(-1), t.reshape(-1), torch.ones(1)]),
    "shorter": lambda t: t.reshape(-1)[:-1],
    "one more dimension": lambda t: t[None, None],
    "strided": lambda t: torch.stack([t, t], -1)[..., 0],
    "with a graph": lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
    "a list": lambda t: t.tolist(),
    "a number": lambda t: 3.0,
    "text": lambda t: "tensor",
    "none": lambda t: None,
    "other values": lambda t: t + 1 if t.dtype != torch.bool else ~t,
}


def _damage_value(random: Random, saved: dict[str, Any]) -> str:
    entry = random.choice([e for e in saved["state"].values() if isinstance(e, dict) and e])
    name = random.choice(list(entry))
    if not isinstance(entry[name], Tensor):
        entry[name] = random.choice(NO_NUMBERS)
        return "a number"
    kind = random.choice(list(TENSORS))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of kinds that are in beta
            entry[name] = TENSORS[kind](entry[name])
    except RuntimeError:  # there is no such form of it
        entry[name] = None
    return f"a tensor: {kind}"


def _damage_names(random: Random, saved: dict[str, Any]) -> str:
    key = random.choice(list(saved["state"]))
    entry, what = saved["state"][key], random.choice(["drop", "rename", "entry", "swap", "other", "key"])
    if what == "drop":
        del entry[random.choice(list(entry))]
    elif what == "rename":
        entry["pairs_z"] = entry.pop(random.choice(list(entry)))
    elif what == "entry":
        del saved["state"][key]
    elif what == "swap":
        other = random.choice(list(saved["state"]))
        saved["state"][key], saved["state"][other] = saved["state"][other], entry
    elif what == "other":
        saved["state"][key] = random.choice([None, [], 3, "entry", {}])
    else:
        saved["state"][1000] = saved["state"].pop(key)
    return f"names: {what}"


def _damage_group(random: Random, saved: dict[str, Any]) -> str:
    group = random.choice(saved["param_groups"])
    name = random.choice(list(group))
    if name == "params":
        group[name] = random.choice([[], None, 3, [0] * len(group[name]), [*group[name], 99], [[]], ["a", "b"]])
    elif random.random() < 0.3:
        del group[name]
    else:
        group[name] = random.choice(NO_NUMBERS)
    return "a value of a group" if name != "params" else "parameters of a group"


def _damage_form(random: Random, saved: dict[str, Any]) -> str:
    name = random.choice(["state", "param_groups"])
    if random.random() < 0.3:
        del saved[name]
    else:
        saved[name] = random.choice([None, [], {}, 3, "text", [None], [{}], [{"params": []}], {0: None}])
    return "its form"


DAMAGE = [_damage_value] * 5 + [_damage_names] * 2 + [_damage_group] * 3 + [_damage_form]


def damaged(random: Random, state_dict: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(What was done, a copy with that damage)."""
    saved = copy.deepcopy(state_dict)
    return random.choice(DAMAGE)(random, saved), saved


def containers_copied(value: Any) -> Any:
    """A copy of the dictionaries and lists, with the same tensors: not all kinds of tensors can be copied."""
    if isinstance(value, dict):
        return {name: containers_copied(inner) for name, inner in value.items()}
    return [containers_copied(inner) for inner in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------- is it the same?


def is_same(a: Any, b: Any) -> bool:
    """Equal to the bit, in dtype and form too; not a number equals itself."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    return bool(a == b) or (a != a and b != b)


def is_taken_over(given: Any, loaded: Any) -> bool:
    """Is that what was given? Tensors of another width are rounded to the optimizer's."""
    if isinstance(loaded, Tensor) and isinstance(given, Tensor):
        given = given.detach().to(loaded.dtype)
        return given.numel() == loaded.numel() and is_same(given.reshape(loaded.shape), loaded)
    if isinstance(given, Tensor):
        return given.numel() == 1 and float(given.detach()) == loaded
    return is_same(given, loaded)
