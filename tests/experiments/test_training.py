"""A run: the same for the same configuration, saved at any moment, resumed with the same bits."""

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import psutil
import pytest
import stopping
import torch

from adaqn import PRESETS
from adaqn.experiments.commands.app import app
from adaqn.experiments.errors import UserError
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.problems.tasks import make_task
from adaqn.experiments.results.groups import command
from adaqn.experiments.training.config import RunConfig
from adaqn.experiments.training.folder import CHECKPOINT, METRICS
from adaqn.experiments.training.options import resolved
from adaqn.experiments.training.parallel import run_all, run_one
from adaqn.experiments.training.run import Run
from adaqn.experiments.training.storage import read_lines

SMALL = RunConfig(layers=1, hidden=12, limit=12_000, steps=12, batch_size=8, length=20, evaluations=20, lr=0.01)
TASKS = {
    "char-lm": SMALL,
    "word-lm": replace(SMALL, task="word-lm", limit=6_000),
    "pixel-mnist": replace(SMALL, task="pixel-mnist", limit=200, length=None),
    "addition": replace(SMALL, task="addition", limit=200, length=10),
    "mlp": replace(SMALL, task="mlp", limit=200, length=None),
}
ADAQN = [sys.executable, "-m", "adaqn"]


def without_time(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def weights(folder: Path):
    return torch.load(folder / CHECKPOINT, weights_only=True)["model"]


@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("optimizer", ["adaqn", "adam"])
def test_every_task_learns_something(task, optimizer):
    run = Run(replace(TASKS[task], optimizer=optimizer, steps=60))
    result = run.train()
    assert result["final"]["test_loss"] < run.metrics[0]["test_loss"]
    extra = {
        "char-lm": "test_bits",
        "word-lm": "test_perplexity",
        "pixel-mnist": "test_accuracy",
        "mlp": "test_accuracy",
    }
    assert task == "addition" or extra[task] in result["final"]


@pytest.mark.parametrize("model", ["tanh", "relu", "lstm", "gru"])
@pytest.mark.parametrize("carry_state", [False, True])
def test_every_cell_trains_with_state_carried_or_reset(model, carry_state):
    run = Run(replace(SMALL, model=model, carry_state=carry_state, steps=30))
    run.train()
    assert run.metrics[-1]["test_loss"] < run.metrics[0]["test_loss"]


@pytest.mark.parametrize("optimizer", list(TABLE))
def test_every_optimizer_of_the_table_trains(optimizer):
    run = Run(replace(SMALL, optimizer=optimizer, lr=None, steps=60))
    run.train()
    assert run.metrics[-1]["train_loss"] < run.metrics[0]["test_loss"]


def test_every_optimizer_sees_the_same_batches_and_starts_from_the_same_weights():
    first, second = (make_task(replace(SMALL, optimizer=name).complete()) for name in ("adam", "adaqn"))
    for step in range(70):
        assert all(torch.equal(a, b) for a, b in zip(first.batch(step), second.batch(step), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(first.model().parameters(), second.model().parameters(), strict=True))


def test_carried_text_is_contiguous():
    task = make_task(replace(SMALL, carry_state=True).complete())
    for step in range(3):
        (x, y), (following, _) = task.batch(step), task.batch(step + 1)
        assert torch.equal(y[:, -1], following[:, 0])
        assert torch.equal(x[:, 1:], y[:, :-1])
    assert not task.continues(0)
    assert task.continues(1)
    assert not task.continues(task.steps_per_epoch)


def test_the_monitoring_set_is_of_the_training_split():
    task = make_task(SMALL.complete())
    rows = {tuple(row) for row in task.splits["train"][0].tolist()}
    assert all(tuple(row) in rows for row in task.monitoring_set()[0].tolist())


def test_weights_are_drawn_with_the_variance_or_the_deviation_of_the_paper():
    for spread, expected in (("variance", 0.1), ("std", 0.01)):
        model = make_task(replace(SMALL, hidden=60, spread=spread).complete()).model()
        assert float(model.cells.weight_hh_l0.detach().std()) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("optimizer", ["adaqn", "adam", "lbfgs", "sdlbfgs", "sqn", "sfo", "hf", "kfac"])
@pytest.mark.parametrize("carry_state", [False, True])
def test_a_resumed_run_has_the_same_bits(tmp_path, optimizer, carry_state):
    config = replace(SMALL, optimizer=optimizer, carry_state=carry_state, model="lstm", evaluations=7)
    if optimizer == "sfo" and carry_state:
        with pytest.raises(UserError, match="leave out carry_state"):
            Run(config)
        return
    whole = run_one(config, tmp_path / "whole")
    for stop in (1, 7, 11):
        folder = tmp_path / f"stopped-{stop}"
        run = Run(config, folder)
        run.begin()

        with pytest.raises(KeyboardInterrupt):
            run.train(stopping.at_step(stop))
        resumed = run_one(config, folder)
        assert without_time(resumed.metrics) == without_time(whole.metrics)
        expected = weights(tmp_path / "whole")
        assert all(torch.equal(value, expected[name]) for name, value in weights(folder).items())


def test_killed_at_random_steps_it_ends_with_the_same_bits(tmp_path):
    """Real SIGKILLs to a real process."""
    size = ["--layers", "1", "--hidden", "16", "--limit", "20000", "--batch-size", "8"]
    command = [*ADAQN, "train", *size, "--steps", "240", "--evaluations", "30"]
    subprocess.run([*command, "--out", tmp_path / "whole"], check=True, capture_output=True)
    folder, chance = tmp_path / "killed", random.Random(5)
    environment = {**os.environ, "ADAQN_CHECKPOINT_SECONDS": "0.1"}
    measured = 0
    for _ in range(3):
        measured += chance.randint(15, 45)
        resume = ["--resume"] if (folder / "config.json").exists() else []
        process = subprocess.Popen([*command, "--out", folder, *resume], stderr=subprocess.DEVNULL, env=environment)
        while len(read_lines(folder / METRICS)) < measured:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        process.kill()
        process.communicate()
    assert torch.load(folder / CHECKPOINT, weights_only=True)["step"] < 240
    subprocess.run([*command, "--out", folder, "--resume"], check=True, capture_output=True)
    assert without_time(read_lines(folder / METRICS)) == without_time(read_lines(tmp_path / "whole" / METRICS))
    expected = weights(tmp_path / "whole")
    assert all(torch.equal(value, expected[name]) for name, value in weights(folder).items())


def test_interrupted_it_saves_and_exits_130(tmp_path):
    command = [*ADAQN, "train", "--steps", "1000000", "--limit", "20000", "--layers", "1", "--out", tmp_path / "run"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / METRICS).exists():
        time.sleep(0.1)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)["step"] > 0


def test_a_damaged_checkpoint_is_named_and_left(tmp_path):
    run = Run(SMALL, tmp_path)
    run.begin()
    run.save()
    path = tmp_path / CHECKPOINT
    half = path.read_bytes()[:500]
    path.write_bytes(half)
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged.*left in place"):
        Run(SMALL, tmp_path).resume()
    assert path.read_bytes() == half


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run = Run(SMALL, tmp_path)
    run.begin()
    run.save()
    with pytest.raises(UserError, match="is of another run"):
        Run(replace(SMALL, lr=0.5), tmp_path).resume()


@pytest.mark.parametrize("what", ["full", "gone"])
def test_a_disk_that_takes_nothing_leaves_the_last_good_checkpoint(tmp_path, what, monkeypatch):
    run = Run(SMALL, tmp_path)
    run.begin()
    run.save()
    before = (tmp_path / CHECKPOINT).read_bytes()
    if what == "full":

        def no_space(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_space)
    else:
        run.folder = Path("/proc/adaqn")
    with pytest.raises(UserError, match=r"cannot write .*checkpoint\.pt"):
        run.save()
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))


def test_runs_side_by_side_are_the_runs_one_by_one_and_are_reused(tmp_path):
    configs = [replace(SMALL, optimizer=name) for name in ("adaqn", "adam", "adagrad")]
    together = run_all(configs, tmp_path / "together", workers=2)
    for config, run in zip(configs, together, strict=True):
        alone = run_one(config, tmp_path / config.optimizer)
        assert without_time(alone.metrics) == without_time(run.metrics)
    again = run_all(configs, tmp_path / "together", workers=2)
    assert [run.metrics for run in again] == [run.metrics for run in together]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"task": "vision"}, "no task called 'vision': give one of char-lm"),
        ({"optimizer": "newton"}, "no optimizer called 'newton': give one of adaqn"),
        ({"model": "transformer"}, "no model called 'transformer'"),
        ({"task": "mlp", "model": "lstm"}, "no model called 'lstm' for mlp"),
        ({"lr": -1.0}, r"lr must be a positive number, got -1\.0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"options": {"memory": 3}}, "adaqn has no option memory: it knows"),
        ({"options": {"memory_size": 0}}, "memory_size must be at least 1"),
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--task", "vision"],
        ["train", "--optimizer", "newton", "--out", "x"],
        ["train", "--option", "cycle_length", "--out", "x"],
        ["train", "--resume", "--out", "nowhere"],
        ["compare", "--optimizers", "adam:fast"],
        ["data", "download", "imagenet"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_the_command_line_has_no_stack_traces(tmp_path, arguments):
    done = subprocess.run([*ADAQN, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_compare_leaves_a_table_figures_and_a_report(tmp_path):
    flags = ["--steps", "20", "--limit", "20000", "--layers", "1", "--hidden", "8", "--seeds", "2"]
    done = subprocess.run(
        [*ADAQN, "compare", *flags, "--out", "compared", "--json"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {row["optimizer"] for row in printed["rows"]} == {"adaQN", "adaQN (paper)", "Adagrad", "Adam"}
    assert all(row["seeds"] == 2 for row in printed["rows"])
    assert (tmp_path / "compared" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "plotly" in (tmp_path / "compared" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in (tmp_path / "compared" / "curves.svg").read_text(encoding="utf-8")


def test_an_interrupted_comparison_saves_every_run_and_goes_on(tmp_path):
    flags = ["--steps", "3000", "--limit", "20000", "--layers", "1", "--hidden", "8", "--out", "compared", "--json"]
    command = [*ADAQN, "compare", *flags, "--optimizers", "adam,adagrad"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    while len(list(tmp_path.glob("compared/runs/*/metrics.jsonl"))) < 2:
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 130
    assert errors.strip().startswith("adaqn: interrupted")
    assert len(list(tmp_path.glob("compared/runs/*/checkpoint.pt"))) == 2
    short = [word if word != "3000" else "40" for word in command]
    done = subprocess.run(short, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_killed_comparison_leaves_no_worker_behind(tmp_path):
    """Its workers would go on, and hold the claims on their folders: the same command could not go on."""
    flags = ["--steps", "100000", "--limit", "20000", "--layers", "1", "--hidden", "8", "--out", "compared"]
    command = [*ADAQN, "compare", *flags, "--optimizers", "adam,adagrad", "--workers", "2"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    while len(list(tmp_path.glob("compared/runs/*/metrics.jsonl"))) < 2:
        assert first.poll() is None
        time.sleep(0.05)
    family = psutil.Process(first.pid).children(recursive=True)
    assert len(family) >= 3  # a manager and two workers
    first.kill()
    first.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


@pytest.mark.parametrize(("command", "own"), [("train", set()), ("compare", {"seed"}), ("tune", set())])
def test_every_number_of_a_run_can_be_set_on_the_command_line(command, own):
    names = {field.name for field in fields(RunConfig)} - {"optimizer", "lr", "options"} - own
    (found,) = (c for c in app.registered_commands if c.callback.__name__ == command)
    assert names <= set(inspect.signature(found.callback).parameters)


def test_options_reach_the_run(tmp_path):
    flags = ["--task", "word-lm", "--vocabulary", "50", "--monitor-size", "7", "--limit", "6000", "--steps", "2"]
    done = subprocess.run(
        [*ADAQN, "train", *flags, "--hidden", "8", "--layers", "1", "--json"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)["config"]
    assert (config["vocabulary"], config["monitor_size"]) == (50, 7)
    assert json.loads(done.stdout)["parameters"] == 50 * 8 + (8 * 8 * 2 + 16) + (8 * 50 + 50)


def test_a_device_that_is_not_there_is_one_clear_error():
    with pytest.raises(UserError, match="device 'abacus' cannot be used here"):
        replace(SMALL, device="abacus").complete()


def test_warnings_of_a_worker_go_into_its_folder(tmp_path):
    odd = replace(SMALL, optimizer="adaqn", options={"curvature_eps": 1e9, "cycle_length": 1}, steps=60)
    (done,) = run_all([odd], tmp_path, 1)
    assert "stored no curvature pair" in (done.folder / "warnings.txt").read_text(encoding="utf-8")


def test_the_averaged_weights_are_their_exponential_average_and_are_evaluated_at_the_end():
    config = replace(SMALL, optimizer="adam", average=0.8)
    run = Run(config)
    expected = None
    for _ in range(config.steps):
        run.advance()
        now = [p.detach().double().clone() for p in run.model.parameters()]
        expected = now if expected is None else [0.8 * old + 0.2 * new for old, new in zip(expected, now, strict=True)]
    for ours, theirs in zip(run.average.module.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.detach().double(), theirs, rtol=1e-5, atol=1e-6)
    run.measure()
    final = run.metrics[-1]
    assert final["average_test_loss"] == run.task.evaluate(run.average.module, "test")["loss"]
    plain = Run(replace(config, average=None)).train()["final"]
    assert plain["test_loss"] == final["test_loss"], "averaging changes nothing else"
    assert "average_test_loss" not in plain


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


PRESET_BY = ({"optimizer": "adaqn-modern"}, {"optimizer": "adaqn", "options": {"preset": "modern"}})


def test_a_scaling_with_options_of_its_own():
    run = Run(replace(SMALL, options={"scaling": {"name": "kronecker", "refresh": 7}}))
    assert run.optimizer.options.scaling.refresh == 7
    run.advance()
    for asked, message in (({"name": "soap"}, "must name one of"), ({"name": "adam", "refresh": 3}, "adam: .*refresh")):
        with pytest.raises(UserError, match=message):
            Run(replace(SMALL, options={"scaling": asked}))
