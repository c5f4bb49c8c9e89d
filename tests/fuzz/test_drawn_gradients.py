"""Gradients of 0, tiny, 1, 1e30, inf and nan on drawn parameters: the weights stay numbers, the state can be loaded.

After the drawn gradients there come ordinary ones, those of half the square of the weights.
"""

import copy
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import drawn
from adaqn import BFGS, LBFGS, AdaQN, EmpiricalFisher, PairOptions
from adaqn.baselines import SFO
from optim.table import BASE, OPTIMIZERS, Held
from oracles import take_step

DRAWN, ORDINARY = 8, 6
LONGEST = 60
"""Weights that are not finite return at the end of a cycle, which has 20 steps at most."""
Make = Callable[[list[nn.Parameter]], Any]


def first_alone(output: Tensor, target: Tensor) -> Tensor:
    return output.reshape(1)


def make_empirical(params: list[nn.Parameter]) -> AdaQN:
    curvature = EmpiricalFisher(Held(params), first_alone, [(torch.zeros(1), torch.zeros(1))])
    return AdaQN(params, **{**BASE, "pairs": PairOptions(memory_size=4, curvature=curvature)})


WHOLE: dict[str, Make] = {
    "lbfgs": lambda params: LBFGS(params, max_iter=2, history_size=3),
    "lbfgs-no-search": lambda params: LBFGS(params, lr=0.1, max_iter=1, history_size=3, line_search_fn=None),
    "bfgs": lambda params: BFGS(params, max_iter=2),
}
EVERY: dict[str, Make] = {
    **{info.name: info for info in OPTIMIZERS},
    **{"adaqn-empirical": make_empirical},
    **WHOLE,
    "sfo": lambda params: SFO(params, batches=2, history_size=3),
}


def usable_dtypes(name: str) -> list[torch.dtype]:
    if name == "sfo":
        return [dtype for dtype in drawn.DTYPES if dtype not in (torch.bfloat16, torch.float16)]
    return drawn.DTYPES


def half_square(params: list[nn.Parameter]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for p in params:
        total = total + 0.5 * p.detach().abs().double().square().sum()
    return total


def one_step(opt: Any, params: list[nn.Parameter], random: Random | None) -> None:
    """One step, whatever it wants: each evaluation draws its gradients anew, or has the ordinary ones."""

    def fill() -> Tensor:
        found = [p.detach().clone() if random is None else drawn.gradient(random, p) for p in params]
        if all(g is None for g in found):  # SFO and whole gradients want at least one
            found = [torch.zeros_like(p) for p in params]
        for p, g in zip(params, found, strict=True):
            p.grad = g
        return half_square(params)

    if isinstance(opt, SFO):
        opt.step(fill, opt.next_index())
    elif isinstance(opt, LBFGS | BFGS):
        opt.step(fill)
    else:
        take_step(opt, fill)


def try_gradients(name: str, seed: int, count: int) -> dict[str, int]:
    random = Random(f"{name} {seed}")
    for case in range(count):
        where = f"{name}, seed {seed}, case {case}"
        params = drawn.parameters(random, usable_dtypes(name))
        twins = [nn.Parameter(p.detach().clone()) for p in params]
        opt = EVERY[name](params)
        for _ in range(DRAWN):
            one_step(opt, params, random)
        for k in range(LONGEST):
            one_step(opt, params, None)
            if k >= ORDINARY and all(p.isfinite().all() for p in params):
                break
        assert all(p.isfinite().all() for p in params), where
        state = copy.deepcopy(opt.state_dict())
        other = EVERY[name](twins)
        other.load_state_dict(state)
        assert drawn.is_same(state, other.state_dict()), where
    return {"steps with drawn gradients": DRAWN * count, "sets of drawn parameters": count}


@pytest.mark.parametrize("name", EVERY)
def test_no_drawn_gradient_leaves_anything_broken(name, record_property):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says of such gradients is tested elsewhere
        record_property("tried", try_gradients(name, seed=0, count=4))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_no_drawn_gradient_of_many_leaves_anything_broken(name, record_property):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record_property("tried", try_gradients(name, seed=1, count=150))
