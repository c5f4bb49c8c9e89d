"""Text from a trained model."""

from dataclasses import replace

import pytest

from adaqn.experiments.commands.sample import drawn_text
from adaqn.experiments.errors import UserError
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.parallel import run_one

SMALL = RunConfig(layers=1, hidden=8, limit=12_000, steps=6, batch_size=8, length=20)


def test_text_from_a_trained_model(tmp_path):
    run_one(replace(SMALL, steps=30), tmp_path / "run")
    text = drawn_text(tmp_path / "run", 50, prompt="The ")
    assert text.startswith("The ")
    assert len(text) == 54
    assert text == drawn_text(tmp_path / "run", 50, prompt="The ")
    assert text != drawn_text(tmp_path / "run", 50, prompt="The ", seed=1)
    with pytest.raises(UserError, match="not in the vocabulary"):
        drawn_text(tmp_path / "run", 5, prompt="\N{SNOWMAN}")
    with pytest.raises(UserError, match="temperature must be positive"):
        drawn_text(tmp_path / "run", 5, temperature=0.0)


def test_words_from_a_trained_model_and_no_text_from_another(tmp_path):
    run_one(replace(SMALL, task="word-lm", limit=4_000), tmp_path / "words")
    assert len(drawn_text(tmp_path / "words", 10).split()) <= 10
    run_one(replace(SMALL, task="mlp", limit=100, length=None), tmp_path / "digits")
    with pytest.raises(UserError, match="not a language model"):
        drawn_text(tmp_path / "digits", 5)
