"""Which cycles are rejected, and which rejections halve the steps (D5, D7, D11, D13, D15, D23)."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import pairwise, product
from math import inf, nan

import pytest
import torch
from torch import Tensor, nn

from adaqn import AdaQN, Monitor, Outcome, RejectOptions, RotatingMonitor
from adaqn.core.acceptance import GROUPS, FactorTest, PairedTest, as_risen, grouped, mean_of_groups, risen
from adaqn.core.acceptance import SMALLEST_MULTIPLIER as FLOOR
from adaqn.optim.events import Counters
from adaqn.optim.judge import Judge, Losses
from oracles import NoisyValley, Vector, as_printed, run
from scripted import follow

ENTROPY = nn.CrossEntropyLoss()


class Classes:
    """Noisy labels of five classes: losses of single examples spread widely, and a monitor of 128 is noisy."""

    def __init__(self, *, rotates: bool = False, seed: int = 0, **options) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(2000, 20)
        teacher = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5))
        with torch.no_grad():
            for p in teacher.parameters():
                p.mul_(3.0)
            self.y = torch.distributions.Categorical(logits=teacher(self.x)).sample()
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
        sets = [(self.x[i : i + 128], self.y[i : i + 128]) for i in range(0, 1920, 128)]
        monitor = RotatingMonitor(self.model, ENTROPY, sets) if rotates else Monitor(self.model, ENTROPY, sets[0])
        self.opt = AdaQN(self.model.parameters(), monitor=monitor, **options)

    def train(self, steps: range) -> None:
        for k in steps:
            rows = torch.randperm(2000, generator=torch.Generator().manual_seed(k))[:32]
            self.opt.zero_grad()
            ENTROPY(self.model(self.x[rows]), self.y[rows]).backward()
            self.opt.step()

    def loss(self) -> float:
        """At the last accepted average, on everything."""
        with torch.no_grad(), self.opt.averaged():
            return float(ENTROPY(self.model(self.x), self.y))


TOO_LARGE = [(0.3, "modern", True), (0.3, "kronecker", True), (10.0, "kronecker", False)]
OTHERS = [t for t in product((0.3, 1.0, 10.0), ("kronecker", "modern"), (False, True)) if t not in TOO_LARGE]


@pytest.mark.parametrize(
    "lr, preset, rotates", [*TOO_LARGE, *(pytest.param(*t, marks=pytest.mark.slow) for t in OTHERS)]
)
def test_steps_that_are_far_too_large_still_learn(lr, preset, rotates):
    problem = Classes(lr=lr, preset=preset, rotates=rotates)
    start, later = problem.loss(), []
    for steps in (range(300), range(300, 450), range(450, 600)):
        problem.train(steps)
        later.append(problem.loss())
    assert start > 1.6
    # Steps this large make a chaos of the last digits: one of three, not each, and no blow-up.
    if rotates and lr > 0.3:  # rises are added up there, and steps this far off shrink slowly
        assert later[-1] < start + 1.0
    else:
        assert min(later) < start - 0.1
        assert later[-1] < start + 0.3
    assert problem.opt.stats.rejected > 0


def test_at_a_good_step_size_nothing_is_held_back():
    problem = Classes(lr=0.01)
    problem.train(range(300))
    assert problem.opt.stats.rejected == 0
    assert problem.loss() < 1.1


@pytest.mark.filterwarnings("ignore:50 cycles in a row")
@pytest.mark.parametrize("lr", [*(pytest.param(lr, marks=pytest.mark.slow) for lr in (1e6, 1e12)), 1e20])
def test_no_step_size_rejects_for_ever(lr):
    problem = Classes(lr=lr)
    start = problem.loss()
    problem.train(range(900))
    assert problem.opt.stats.cycles - problem.opt.stats.rejected > 50
    assert problem.loss() < start


def test_the_best_loss_is_saved_and_goes_on_with_the_same_bits():
    whole, halves = Classes(lr=1.0), Classes(lr=1.0)
    whole.train(range(200))
    halves.train(range(93))
    resumed = Classes(lr=1.0, seed=7)
    resumed.model.load_state_dict(halves.model.state_dict())
    resumed.opt.load_state_dict(copy.deepcopy(halves.opt.state_dict()))
    resumed.train(range(93, 200))
    assert whole.opt.stats == resumed.opt.stats
    assert whole.opt.stats.rejected > 0
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_state_of_before_knows_no_best_loss():
    problem = Classes(lr=0.3)
    problem.train(range(40))
    assert knows_best(problem.opt)
    saved = copy.deepcopy(problem.opt.state_dict())
    for entry in saved["state"].values():
        entry["format"] = 3
        del entry["best_losses"]
    older = Classes(lr=0.3)
    older.opt.load_state_dict(saved)
    assert not knows_best(older.opt)
    assert older.opt.stats == problem.opt.stats


def test_another_monitor_and_a_new_history_forget_it():
    problem = Classes(lr=0.01)
    for forget in (problem.opt.reset_history, lambda: setattr(problem.opt, "monitor", problem.opt.monitor)):
        problem.train(range(20))
        assert knows_best(problem.opt)
        forget()
        assert not knows_best(problem.opt)


def losses(mean: float, spread: float = 1.0) -> Tensor:
    """Their mean is exactly this, and its standard error spread / √100."""
    noise = torch.linspace(-1.0, 1.0, 100, dtype=torch.float64)
    return mean + spread * noise / noise.std()


def knows_best(opt: AdaQN) -> bool:
    """In the saved state of every parameter, or in none."""
    (known,) = {not bool(entry["best_losses"].isinf().all()) for entry in opt.state_dict()["state"].values()}
    return known


def test_what_counts_as_a_climb():
    test, best = PairedTest(level=3.0), grouped(noisy(1.0, 1))
    assert test.has_climbed(noisy(1.6, 2), noisy(1.5, 3), best)
    assert not test.has_climbed(noisy(1.2, 2), noisy(1.1, 3), best), "within the noise of both"
    assert not test.has_climbed(noisy(1.9, 2), noisy(2.0, 3), best), "it is on its way down"
    assert not test.has_climbed(torch.tensor(9.0), torch.tensor(1.0), best), "one loss knows no noise"
    assert not test.has_climbed(noisy(9.0, 2), noisy(8.0, 3), grouped(torch.tensor(1.0))), "nor does one group"
    assert test.has_climbed(noisy(-0.4, 2), noisy(-0.5, 3), grouped(noisy(-1.0, 1)))
    assert not test.has_climbed(noisy(1.6, 2), noisy(1.5, 3), NO_BEST)


def test_a_rise_of_all_examples_is_a_climb_beyond_the_noise_at_the_best():
    best = noisy(1.0, 1)
    error = float(grouped(best).std()) / 4
    for share, climbed in ((2.9, False), (3.1, True)):
        assert PairedTest(3.0).has_climbed(best + share * error, best, grouped(best)) == climbed


def test_a_few_examples_are_no_climb():
    """Most are learnt, and their mean is that of a few: the error of the lucky best is far below what these do."""
    best = torch.full((128,), 0.01, dtype=torch.float64) + 0.002 * torch.cos(torch.arange(128.0))
    few = best.clone()
    few[[5, 40, 77]] += 3.0
    assert float(few.mean()) > 7 * float(best.mean())
    assert not PairedTest(3.0).has_climbed(few, best + 0.01, grouped(best))


def test_rounding_is_no_climb():
    best = torch.ones(64)
    higher = torch.nextafter(best, torch.tensor(9.0))
    assert not PairedTest(3.0).has_climbed(higher, best, grouped(best))
    assert PairedTest(3.0).has_climbed(best + 1e-5, best, grouped(best))


@pytest.mark.parametrize("count", [2, 5, 16, 17, 100, 128])
def test_groups_of_losses(count):
    values = torch.arange(float(count)).double().square()
    means = grouped(values)
    known = min(count, GROUPS)
    assert means[:known].isfinite().all()
    assert means[known:].isinf().all()
    assert mean_of_groups(means) == pytest.approx(float(values.mean()), rel=0.1 if count % GROUPS else 1e-12)
    assert (means[:known].diff() > 0).all(), "neighbours are together"


def test_rounding_is_no_rise():
    old = torch.rand(128) + 1.0
    assert not PairedTest()(torch.nextafter(old, torch.full_like(old, 9.0)), old)
    same = torch.full((128,), 1.5)  # losses without a spread: any rise matters
    assert not PairedTest()(torch.nextafter(same, torch.full_like(same, 9.0)), same)
    assert PairedTest()(same + 1e-3, same)


@pytest.mark.parametrize("spreads", [0.25, 0.35])
def test_a_rise_far_below_the_noise_of_the_loss_itself_is_no_reason(spreads):
    """D38: with all examples higher by the same, the paired differences have no noise at all."""
    old = noisy(1.0, 1)
    error = float(old.std()) / len(old) ** 0.5
    assert PairedTest(3.0)(old + spreads * error, old) == (spreads > 0.3)
    assert PairedTest(1.0)(old + spreads * error, old), "the level scales both"


# ---------------------------------------------------------------------- verdicts


RISE = Losses(new=torch.tensor(2.0), old=torch.tensor(1.0))
FALL = Losses(new=torch.tensor(1.0), old=torch.tensor(2.0))
FACTOR, PAIRED = FactorTest(1.01), PairedTest(3.0)


def noisy(mean: float, seed: int, spread: float = 1.0) -> Tensor:
    """The losses above in an order of their own: what differs between two of these is noise."""
    return losses(mean, spread)[torch.randperm(100, generator=torch.Generator().manual_seed(seed))]


CLIMB = Losses(new=noisy(1.35, 1), old=noisy(1.25, 2))
"""Within the noise of one cycle, and above the best loss beyond that."""


def counters(**values) -> Counters:
    return Counters(**{"started": 1, "cycles": 20, **values})


BEST, NO_BEST = grouped(noisy(0.7, 4)), torch.full((GROUPS,), inf, dtype=torch.float64)
LOST = Losses(is_number=False)
TO_NAN = Losses(new=torch.tensor(nan), old=torch.tensor(1.0))
FROM_NAN = Losses(new=torch.tensor(9.0), old=torch.tensor(nan))
CASES = {
    "no monitor": (Judge(FACTOR), Losses(), counters(), 0, (False, "", False)),
    "no test": (Judge(None), RISE, counters(), 0, (False, "", False)),
    "better": (Judge(FACTOR, window=10), FALL, counters(rejected_at=19), 0, (False, "", False)),
    "worse": (Judge(FACTOR), RISE, counters(), 3, (True, "worse", False)),
    "no number": (Judge(None), LOST, counters(), 3, (True, "not finite", False)),
    "nan": (Judge(FACTOR), TO_NAN, counters(), 3, (True, "worse", False)),
    "a set that cannot judge": (Judge(FACTOR), FROM_NAN, counters(), 3, (False, "", False)),
    "D11, one of two": (Judge(FACTOR, patience=2), RISE, counters(), 0, (True, "worse", False)),
    "D11, two": (Judge(FACTOR, patience=2), RISE, counters(rejections_in_row=1), 0, (True, "worse", True)),
    "D11, with pairs": (Judge(FACTOR, patience=2), RISE, counters(rejections_in_row=1), 1, (True, "worse", False)),
    "D11, never": (Judge(FACTOR, patience=0), RISE, counters(rejections_in_row=0), 0, (True, "worse", False)),
    "D15, the first": (Judge(FACTOR, window=10), RISE, counters(), 3, (True, "worse", False)),
    "D15, within": (Judge(FACTOR, window=10), RISE, counters(rejected_at=11), 3, (True, "worse", True)),
    "D15, beyond": (Judge(FACTOR, window=10), RISE, counters(rejected_at=10), 3, (True, "worse", False)),
    "D15, no number": (Judge(None, window=10), LOST, counters(rejected_at=19), 3, (True, "not finite", True)),
    "D23": (Judge(PAIRED), CLIMB, counters(), 3, (True, "climbed", True)),
    "D23 and D15": (Judge(PAIRED, window=10), CLIMB, counters(rejected_at=19), 3, (True, "climbed", True)),
    "D23, no best yet": (Judge(PAIRED), CLIMB, counters(), 3, (False, "", False)),
    "D23, not by factor": (Judge(FactorTest(2.0)), CLIMB, counters(), 3, (False, "", False)),
}  # fmt: skip
"""The rules, the losses, the counters, the pairs in memory → (rejected, why, halve)."""


@pytest.mark.parametrize("name", list(CASES))
def test_verdicts(name):
    judge, seen, known, pairs, expected = CASES[name]
    before, best = copy.deepcopy(known), best_of(name)
    verdict = judge.verdict(seen, known, pairs, best)
    assert (verdict.rejected, verdict.why, verdict.halve) == expected
    assert known == before, "a verdict changes nothing by itself"
    assert torch.equal(best, best_of(name))
    again = judge.verdict(seen, known, pairs, best)
    assert replace(again, best=None) == replace(verdict, best=None)
    assert again.best is verdict.best is None or torch.equal(again.best, verdict.best)


def test_a_loss_that_is_no_number_is_not_the_best():
    """Where the anchor's is none either, the cycle is kept; a few lucky groups must not be held against the next."""
    new = noisy(1.0, 1).index_fill(0, torch.tensor([0]), inf)
    assert not Judge(PAIRED).verdict(Losses(new=new, old=new), counters(), 3, BEST).rejected
    for best in (BEST, NO_BEST):
        kept = best.clone()
        Judge(PAIRED).verdict(Losses(new=new - 9.0, old=new), counters(), 3, best).apply_to(counters(), kept)
        assert torch.equal(kept, best)


def best_of(name: str) -> Tensor:
    return (NO_BEST if "no best" in name else BEST).clone()


@pytest.mark.parametrize("name", list(CASES))
def test_a_verdict_halves_the_steps_once_and_not_below_the_floor(name):
    judge, seen, known, pairs, (_, _, halve) = CASES[name]
    for multiplier in (1.0, 0.5, FLOOR):
        now = replace(known, step_multiplier=multiplier)
        judge.verdict(seen, now, pairs, best_of(name)).apply_to(now, best_of(name))
        assert now.step_multiplier == max(multiplier / 2 if halve else multiplier, FLOOR)


def test_the_best_loss_fades_only_when_it_rejects():
    known, best = counters(), BEST.clone()
    Judge(PAIRED).verdict(CLIMB, known, 3, best).apply_to(known, best)
    torch.testing.assert_close(best, BEST + 0.5 * (grouped(CLIMB.old) - BEST))
    better = Losses(new=noisy(0.5, 3), old=noisy(1.25, 2))
    Judge(PAIRED).verdict(better, known, 3, best).apply_to(known, best)
    assert torch.equal(best, grouped(better.new))


def test_of_a_rotating_monitor_rises_are_added_up_and_no_set_is_compared_with_another():
    """D23: one set is ten times as hard as the other, and nothing is made of it; a climb of many cycles is found."""
    judge, known, best = Judge(PAIRED), counters(), grouped(torch.tensor(math.inf))
    for k in range(40):  # each cycle lowers its own set's loss a little
        old = noisy(1.0 if k % 2 else 10.0, k)
        verdict = judge.verdict(Losses(new=old - 1e-3, old=old, rotating=True), known, 0, best)
        verdict.apply_to(known, best)
        assert not verdict.rejected
        assert risen(best) == 0.0
    found = []
    for k in range(40):  # each raises it by a little that would not be noticed
        old = noisy(1.0 if k % 2 else 1.5, k)
        verdict = judge.verdict(Losses(new=old + 0.02, old=old, rotating=True), known, 0, best)
        verdict.apply_to(known, best)
        found.append(verdict.why)
    assert set(found) == {"", "climbed"}
    assert found.index("climbed") == pytest.approx(3.0 / (0.02 * 128**0.5), abs=6)


def test_a_batch_of_ones_own_forgets_what_rotating_sets_said():
    best, known = as_risen(0.7), counters()
    fixed = Losses(new=noisy(1.0, 1) + 0.01, old=noisy(1.0, 1))
    Judge(PAIRED).verdict(fixed, known, 0, best).apply_to(known, best)
    assert torch.equal(best, grouped(fixed.old))


def test_weights_that_are_lost_count_where_there_is_a_window():
    """D13: D11 does not count them."""
    assert not Judge(None, patience=1).lost(counters(), 0).halve
    assert Judge(None, window=5).lost(counters(rejected_at=18), 0).halve


# ---------------------------------------------------------------------- the step multiplier of an optimizer


def judged(answers, steps: int, reject: RejectOptions):
    """One cycle per step; returns the optimizer and the multiplier after each."""
    problem = NoisyValley()
    model, events = Vector(problem.w0), []
    opt = as_printed(model.parameters(), lr=0.05, cycle_length=1, reject=reject, on_cycle=events.append)
    run(follow(opt, *answers), model, problem, range(steps))
    return opt, [(event.outcome, event.step_multiplier) for event in events]


def zigzag(mean: float, sign: int) -> Tensor:
    """Two of opposite signs differ by noise alone, which cancels between neighbours."""
    return mean + sign * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(48)


CLIMBING = (zigzag(1.0, 1), zigzag(1.0, -1), zigzag(1.2, 1))


def test_a_cycle_that_two_rules_call_too_long_is_halved_once():
    """D23 at a cycle within the window of D15."""
    opt, found = judged((CLIMBING[0], *CLIMBING), 5, RejectOptions("paired", window=10))
    assert [outcome for outcome, _ in found[:2]] == [Outcome.STARTED, Outcome.STORED]
    assert found[2:] == [(Outcome.REJECTED, 0.5), (Outcome.REJECTED, 0.25), (Outcome.REJECTED, 0.125)]
    assert opt.stats.step_multiplier == 0.125


WORSE = (1.0, 2.0)


@pytest.mark.filterwarnings("ignore:50 cycles in a row")
@pytest.mark.parametrize(
    "reject, answers",
    [
        (RejectOptions("factor", patience=1), WORSE),
        (RejectOptions("factor", window=1), (1.0, 1.0, 2.0)),
        (RejectOptions("paired", window=10), CLIMBING),
        (RejectOptions("paired", patience=1), CLIMBING[1:]),
    ],
    ids=["D11", "D15", "D15 and D23", "D11 and D23"],
)
def test_no_rule_shrinks_the_steps_to_nothing(reject, answers):
    """1,100 rejections in a row: halved as often, a float would be 0, and explain() would divide by it."""
    opt, found = judged(answers, 1101, reject)
    assert opt.stats.rejected == 1100
    assert opt.stats.step_multiplier == FLOOR == 2.0**-80
    assert "rejected" in str(opt.explain())
    rejected = [multiplier for outcome, multiplier in found if outcome is Outcome.REJECTED]
    for before, after in pairwise(rejected):
        assert after in (before, max(before / 2, FLOOR))
