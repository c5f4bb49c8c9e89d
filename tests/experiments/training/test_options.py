"""Options by their flat names: presets written out, mistakes told."""

from dataclasses import replace

import pytest

from adaqn import PRESETS
from adaqn.experiments.errors import UserError
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.options import command, resolved
from adaqn.experiments.training.run import Run

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=12, batch_size=8, length=20, evaluations=20, lr=0.01)
PRESET_BY = ({"optimizer": "adaqn-modern"}, {"optimizer": "adaqn", "options": {"preset": "modern"}})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"task": "vision"}, "no task called 'vision': give one of char-lm"),
        ({"optimizer": "newton"}, "no optimizer called 'newton': give one of adaqn"),
        ({"model": "conv"}, "no model called 'conv' for char-lm"),
        ({"task": "mlp", "model": "lstm"}, "no model called 'lstm' for mlp"),
        ({"lr": -1.0}, r"lr must be a positive number, got -1\.0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"options": {"memory": 3}}, "adaqn has no option memory: it knows"),
        ({"options": {"memory_size": -1}}, "memory_size must be at least 0"),
        ({"spread": "wide"}, "spread must be 'variance' or 'std'"),
        ({"task": "addition", "carry_state": True}, "carry_state is for language models"),
        ({"limit": 60}, "fewer than one sequence|fewer than one batch"),
        ({"batch_size": 100_000}, "fewer than one batch of 100000"),
    ],
    ids=str,
)
def test_mistakes_are_one_clear_error(changes, message):
    with pytest.raises(UserError, match=message):
        Run(replace(SMALL, **changes))


def test_a_device_that_is_not_there_is_one_clear_error():
    with pytest.raises(UserError, match="device 'abacus' cannot be used here"):
        replace(SMALL, device="abacus").complete()


def test_a_preset_is_written_out_so_that_its_run_is_known_when_presets_change():
    by_name, by_option = (resolved(replace(SMALL, lr=None, **how)) for how in PRESET_BY)
    assert by_name.options == by_option.options
    assert by_name.options["scaling"] == PRESETS["modern"].scaling
    assert by_name.lr == by_option.lr == PRESETS["modern"].lr
    assert "preset" not in by_name.options
    changed = resolved(replace(SMALL, optimizer="adaqn-modern", options={"memory_size": 7}))
    assert changed.options == {**by_name.options, "memory_size": 7}
    assert "--option memory_size=7 " in command(changed, [0])
    assert command(changed, [0]).count("--option") == 1, "what the preset says is not repeated"
    with pytest.raises(UserError, match="no preset called 'fast'"):
        resolved(replace(SMALL, options={"preset": "fast"}))


def test_a_scaling_with_options_of_its_own():
    run = Run(replace(SMALL, options={"scaling": {"name": "kronecker", "refresh": 7}}))
    run.advance()
    assert run.optimizer.scaling.refresh == 7
    for asked, message in (({"name": "soap"}, "must name one of"), ({"name": "adam", "refresh": 3}, "adam: .*refresh")):
        with pytest.raises(UserError, match=message):
            Run(replace(SMALL, options={"scaling": asked}))


def test_a_step_size_reaches_every_parameter_of_muon():
    slow, fast = (Run(replace(SMALL, optimizer="muon", lr=lr)) for lr in (1e-3, 1e-2))
    for a, b in zip(slow.optimizer.param_groups, fast.optimizer.param_groups, strict=True):
        assert b["lr"] == pytest.approx(10 * a["lr"])


@pytest.mark.parametrize(
    ("optimizer", "identity"),
    [
        ("adaqn-paper", "011cfb0d730f"),
        ("adam", "ad9e107840b7"),
    ],
)
def test_a_run_of_the_first_release_is_the_same_run(optimizer, identity):
    """Its folder, its checkpoint and its results are found again; the presets of today are others than then (D36)."""
    config = resolved(replace(SMALL, optimizer=optimizer, steps=40))
    assert config.identity() == identity
    before = config.to_json()
    if config.options.get("acceptance") == "paired":
        before["options"] = {**config.options, "acceptance": "auto"}
    assert RunConfig.from_json(before) == config


def test_pairs_that_were_asked_for_are_in_the_command_that_repeats_a_run():
    """The default has none; who gives an option for them gets three, and a number of one's own is said."""
    assert "memory_size" not in command(resolved(RunConfig()), [0])
    for options in ({"memory_size": 5}, {"damping": 0.2}, {"memory_size": 5, "damping": 0.2}):
        found = resolved(RunConfig(options=options))
        assert found.options["memory_size"] == options.get("memory_size", 3)
        said = command(found, [0])
        assert all(f"--option {name}={value}" in said for name, value in options.items())
