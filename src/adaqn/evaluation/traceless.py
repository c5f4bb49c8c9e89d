"""Calling a function of the user's once more than the training loop would, so that nobody notices."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from adaqn.evaluation.random_state import kept_everywhere
from adaqn.evaluation.undisturbed import gradients_put_aside, modes_and_buffers_kept

DEPTH = 4
"""From a function to the object in its closure, to a wrapper in that, to the model."""
MOST_LOOKED_AT = 2000
"""Objects: what a notebook has for globals must not take seconds."""


@contextmanager
def traceless(function: Callable[[], Any], params: Sequence[Tensor]) -> Iterator[None]:
    """Gradients of ``params``, random numbers, and modes and buffers of the models of ``function`` stay as they are.

    Unlike ``undisturbed`` it does not switch to eval mode: the function is tried as it will be called.
    """
    with ExitStack() as stack:
        stack.enter_context(kept_everywhere({p.device for p in params}))
        stack.enter_context(gradients_put_aside(params))
        for model in models_of(function):
            stack.enter_context(modes_and_buffers_kept(model))
        yield


def models_of(function: Any) -> list[nn.Module]:
    """The modules that a function can reach by its closure, its globals, its attributes and its bound arguments.

    >>> model = nn.Linear(2, 1)
    >>> models_of(lambda: model.weight.sum()) == [model]
    True
    """
    found: list[nn.Module] = []
    seen: set[int] = set()
    level = [function]
    for _ in range(DEPTH):
        following: list[Any] = []
        for thing in level:
            if id(thing) in seen or len(seen) > MOST_LOOKED_AT:
                continue
            seen.add(id(thing))
            if isinstance(thing, nn.Module):
                found.append(thing)
            else:
                following += _within(thing)
        level = following
    return found


def _within(thing: Any) -> list[Any]:
    """What it holds, without running any code of it."""
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, types.FunctionType):
        return _used_by(thing)
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, Mapping):
        return list(thing.values())
    if isinstance(thing, list | tuple | set):
        return list(thing)
    if isinstance(thing, type | types.ModuleType | Tensor):
        return []
    called = getattr(type(thing), "__call__", None)  # noqa: B004 - its code, to look into
    return [*getattr(thing, "__dict__", {}).values(), *([called] if isinstance(called, types.FunctionType) else [])]


def _used_by(function: types.FunctionType) -> list[Any]:
    try:
        variables = inspect.getclosurevars(function)
    except ValueError:  # a variable of the closure that has no value yet
        return []
    wrapped = inspect.unwrap(function)
    return [*variables.nonlocals.values(), *variables.globals.values(), *([] if wrapped is function else [wrapped])]
