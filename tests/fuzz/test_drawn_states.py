"""States with drawn damage: each is loaded exactly, or refused with one ValueError and nothing is changed."""

import copy
import warnings
from collections import Counter
from random import Random

import pytest
import torch

import drawn
from adaqn import AdaQN, Monitor
from methods import METHODS, Method, batches, loss_fn, network

PRESETS = [
    Method(
        f"adaqn-{preset}",
        lambda m, preset=preset: AdaQN(
            m.parameters(), lr=0.02, preset=preset, cycle_length=3, monitor=Monitor(m, loss_fn, batches()[0])
        ),
    )
    for preset in ("default", "paper", "modern", "kronecker")
]
EVERY = pytest.mark.parametrize("method", [*PRESETS, *METHODS[1:]], ids=lambda method: method.name)
STEPS = 7


class Trained:
    """An optimizer in mid-training that is brought back to where it was after every case."""

    def __init__(self, method: Method) -> None:
        self.method, self.model = method, network()
        self.opt = method.make(self.model)
        for k in range(STEPS):
            method.advance(self.opt, self.model, k)
        self.state = copy.deepcopy(self.opt.state_dict())
        self.weights = copy.deepcopy(self.model.state_dict())

    def bring_back(self) -> None:
        self.model.load_state_dict(self.weights)
        self.opt.load_state_dict(copy.deepcopy(self.state))

    def is_unchanged(self) -> bool:
        return drawn.is_same(self.state, self.opt.state_dict()) and drawn.is_same(
            dict(self.weights), dict(self.model.state_dict())
        )

    def has_taken_over(self, given: dict) -> bool:
        loaded = self.opt.state_dict()
        groups = zip(given["param_groups"], loaded["param_groups"], strict=True)
        for theirs, ours in groups:
            if not all(drawn.is_taken_over(theirs[name], ours[name]) for name in theirs if name != "params"):
                return False
        keys = [key for group in given["param_groups"] for key in group["params"]]
        state = {keys.index(key) if key in keys else key: entry for key, entry in given["state"].items() if entry}
        ours = {key: entry for key, entry in loaded["state"].items() if entry}
        return state.keys() == ours.keys() and all(self._same_entry(state[key], ours[key]) for key in state)

    @staticmethod
    def _same_entry(given: dict, loaded: dict) -> bool:
        stand_ins = {"accepted": "keeps_accepted", "iterate": "evaluating"}  # the anchor, where there is no such vector
        unused = {name for name, kept in stand_ins.items() if not loaded.get(kept, 1)}
        if given.get("keeps_accepted") == 0:  # the optimizer may keep an average all the same
            unused |= {"keeps_accepted", "accepted"}
        if given.keys() != loaded.keys():
            return False
        return all(drawn.is_taken_over(given[name], loaded[name]) for name in given if name not in unused)


def try_states(method: Method, seed: int, count: int) -> Counter:
    random, trained, tried = Random(f"{method.name} {seed}"), Trained(method), Counter()
    for case in range(count):
        what, state = drawn.damaged(random, trained.state)
        before = drawn.containers_copied(state)
        where = f"{method.name}, seed {seed}, case {case}: {what}"
        try:
            trained.opt.load_state_dict(state)
        except ValueError:
            assert trained.is_unchanged(), where
            tried["refused"] += 1
            continue
        assert trained.has_taken_over(before), where
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a state of fewer parameters is of others that were frozen
            method.advance(trained.opt, trained.model, STEPS)
        tried["loaded"] += 1
        trained.bring_back()
    assert trained.is_unchanged()
    return tried


@EVERY
def test_a_drawn_state_is_loaded_exactly_or_changes_nothing(method, record_property):
    tried = try_states(method, seed=0, count=25)
    record_property("tried", {f"states {what}": number for what, number in tried.items()})


@pytest.mark.slow
@EVERY
def test_many_drawn_states_are_loaded_exactly_or_change_nothing(method, record_property):
    tried = try_states(method, seed=1, count=400)
    record_property("tried", {f"states {what}": number for what, number in tried.items()})
    assert min(tried["refused"], tried["loaded"]) > 2


@EVERY
def test_an_lr_that_no_step_can_go_by_is_refused_when_it_is_loaded(method):
    trained = Trained(method)
    for lr in ("abc", None, float("nan"), -1.0, 1e300, drawn.freed(torch.ones(())), torch.ones((), device="meta")):
        state = copy.deepcopy(trained.state)
        state["param_groups"][0]["lr"] = lr
        with pytest.raises(ValueError, match=r"param groups of the saved state.*lr"):
            trained.opt.load_state_dict(state)
        assert trained.is_unchanged(), lr
    del state["param_groups"][0]["lr"]
    with pytest.raises(ValueError, match="param group 0 of the saved state has no 'lr'"):
        trained.opt.load_state_dict(state)
    assert trained.is_unchanged()
