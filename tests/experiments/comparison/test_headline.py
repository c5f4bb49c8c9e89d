"""The sentence on top of a comparison says what happened, whichever way it went."""

import math
from pathlib import Path

import pytest

from adaqn.experiments.comparison.headline import Contender, headline, rivals
from adaqn.experiments.training.folder import Finished


def contender(optimizer, *losses, name=None, every=10.0, task="char-lm", seeds=1):
    """One loss after every 100 steps, ``every`` seconds apart."""
    metrics = [{"step": 100 * i, "seconds": every * i, "test_loss": loss} for i, loss in enumerate(losses)]
    run = Finished(Path(optimizer), {"config": {"task": task}}, metrics)
    return Contender(optimizer, name or optimizer, [run] * seeds)


ADAM = contender("adam", 4.0, 3.0, 2.0, name="Adam")


def test_the_goal_was_reached():
    ours = contender("adaqn", 4.0, 2.0, 1.0, name="adaQN", every=15.0)
    assert headline([ours, ADAM]) == (
        "Adam's final test loss (2.000 after 20 s and 200 steps) was reached by adaQN after 15 s and 100 steps. "
        "One seed."
    )


def test_between_two_evaluations_it_is_a_straight_line():
    assert "after 15 s and 150 steps" in headline([contender("adaqn", 4.0, 3.0, 1.0), ADAM])


def test_late_is_said():
    slow = contender("adaqn", 4.0, 2.0, 1.0, every=40.0)
    assert "was reached by adaqn only after 40 s and 100 steps" in headline([slow, ADAM])


def test_the_other_way_round_is_said():
    worse = contender("adaqn", 4.0, 3.5, 3.0, name="adaQN")
    assert headline([worse, ADAM]) == (
        "Adam's final test loss (2.000 after 20 s and 200 steps) was not reached by adaQN, which ended at 3.000 after "
        "20 s and 200 steps. Adam had that after 10 s and 100 steps. One seed."
    )


@pytest.mark.parametrize(
    "ours, adam, said",
    [
        (math.nan, 2.0, "adaqn ended with a loss that is not finite, Adam at 2.000"),
        (2.0, math.nan, "Adam ended with a loss that is not finite, adaqn at 2.000"),
        (math.nan, math.nan, "Both Adam and adaqn ended with a loss that is not finite"),
    ],
)
def test_a_loss_that_is_not_finite_is_said(ours, adam, said):
    assert said in headline([contender("adaqn", 4.0, ours), contender("adam", 4.0, adam, name="Adam")])


def test_the_best_of_ours_is_measured_by_adam_whatever_else_is_there():
    ours, worse = contender("adaqn", 4.0, 1.0), contender("adaqn-paper", 4.0, 2.0)
    soap = contender("soap", 4.0, 0.5)
    assert [c.optimizer for c in rivals([soap, worse, ADAM, ours])] == ["adaqn", "adam"]
    assert [c.optimizer for c in rivals([soap, worse, ours])] == ["adaqn", "soap"]
    assert [c.optimizer for c in rivals([soap, ADAM])] == ["soap", "adam"]


def test_there_is_nothing_to_say_of_one_optimizer():
    assert headline([contender("adaqn", 4.0, 1.0), contender("adaqn", 4.0, 2.0)]) is None
    assert headline([]) is None


def test_whole_batches_count_evaluations_and_seeds_are_told():
    said = headline([contender(name, 4.0, 1e-5, task="pinn", seeds=3) for name in ("adaqn-lbfgs", "torch-lbfgs")])
    assert said.startswith("torch-lbfgs's final loss (1e-05 after 10 s and 100 evaluations) was reached")
    assert said.endswith("Means over 3 seeds.")
