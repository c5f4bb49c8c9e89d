"""What the doctor says is what the optimizer takes."""

import json
import re
from dataclasses import replace

import pytest
import torch
from laboratory import command
from torch import nn

from adaqn import PRESETS, AdaQN
from adaqn.experiments.commands import doctor, measuring
from adaqn.experiments.errors import UserError


def small():
    return nn.Linear(20, 30)


def with_loss():
    model, x = nn.Linear(20, 30), torch.randn(8, 20)
    return model, lambda: model(x).square().mean()


def with_broken_loss():
    return nn.Linear(2, 3), lambda: None


def with_a_number():
    return nn.Linear(2, 3), 7


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(doctor, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(measuring, "REPEATS", 2)


def test_memory_is_what_the_optimizer_announces():
    found = doctor.examine(f"{__name__}:small", threads=1)
    assert found["model"]["parameters"] == 630
    settings = found["model"]["settings"]
    assert settings["paper"]["bytes"] == AdaQN(small().parameters(), preset="paper").state_size()
    for preset in ("modern", "kronecker"):
        assert settings[preset]["bytes"] == AdaQN(small().parameters(), preset=preset).state_size()
    assert all(0 < cost["low"] <= cost["seconds_per_step"] <= cost["high"] for cost in settings.values())
    assert found["packages"]["torch"]
    assert settings["AdamW"]["bytes"] == 4 * (2 * 630 + 2)  # two vectors, and a count of each tensor
    assert settings["SOAP"]["bytes"] == 4 * (2 * 630 + 2 * (20**2 + 30**2))
    assert found["model"]["forward_and_backward"] is None
    assert "let the function return (model, loss)" in found["model"]["notes"][0]


def test_forward_and_backward_of_a_model_with_its_loss(capsys):
    found = doctor.examine_model(f"{__name__}:with_loss", None, "cpu")
    passes = found["forward_and_backward"]
    assert 0 < passes["low"] <= passes["seconds_per_step"] <= passes["high"]
    doctor.print_costs(found)
    said = capsys.readouterr().out
    rows = ("forward and backward", "AdamW", "SOAP", "AdaQN, kronecker (default)", "5.05 kB", " to ")
    assert all(row in said for row in rows)
    assert PRESETS[doctor.USUAL] == PRESETS["default"]


def test_a_task_has_its_own_loss():
    network, loss = doctor.load_model("mlp", None)
    loss().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_without_soap_the_others_are_measured(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    found = doctor.examine_model(f"{__name__}:small", None, "cpu")
    assert "SOAP" not in found["settings"]
    assert "SOAP is not measured: pip install pytorch_optimizer" in found["notes"]


IDLE = measuring.Times(0.01, 0.009, 0.012, share=1.0)


@pytest.mark.parametrize(
    "load, share, device, said",
    [
        (0.1, 1.0, "cpu", None),
        (None, 1.0, "cpu", None),
        (7.9, 1.0, "cpu", r"machine is busy \(its load was 7\.9 on 2 cores\): times are too long"),
        (0.1, 0.3, "cpu", r"machine is busy \(this process got 30% of a core\)"),
        (0.1, 0.3, "cuda", None),  # the CPU waits there
    ],
)
def test_a_busy_machine_is_said(monkeypatch, load, share, device, said):
    monkeypatch.setattr(measuring.os, "cpu_count", lambda: 2)
    warning = measuring.busy(load, [IDLE, replace(IDLE, share=share)], device)
    assert warning is None if said is None else re.search(said, warning)


def test_the_warning_comes_with_the_numbers(monkeypatch, capsys):
    monkeypatch.setattr(measuring, "load", lambda: 1000.0)
    found = doctor.examine_model(f"{__name__}:small", None, "cpu")
    assert found["busy"]
    doctor.print_costs(found)
    assert "warning: the machine is busy (its load was 1000.0" in capsys.readouterr().out


def test_times_are_per_step_with_a_range(monkeypatch):
    ticks = iter([0.0, 1.0, 2.0, 5.0, 5.0, 6.0, 6.0, 8.0, 8.0, 9.0])
    monkeypatch.setattr(measuring, "REPEATS", 5)
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(measuring.time, "process_time", lambda: 0.0)
    assert measuring.timed(lambda: None, "cpu", steps=10) == measuring.Times(0.1, 0.1, 0.3, share=0.0)


@pytest.mark.parametrize(
    "name, message",
    [
        ("resnet", "a model is one of"),
        ("no.such:thing", "cannot make a model"),
        ("json:loads", "cannot make a model"),
        ("time:time", "returned float, not a torch.nn.Module"),
        (f"{__name__}:with_a_number", "returned a model and int, not a function"),
    ],
)
def test_what_is_no_model_is_one_error(name, message):
    with pytest.raises(UserError, match=message):
        doctor.load_model(name, None)


def test_a_loss_that_cannot_be_computed_is_one_error():
    with pytest.raises(UserError, match=r"the loss of .*with_broken_loss' cannot be computed"):
        doctor.examine_model(f"{__name__}:with_broken_loss", None, "cpu")


def test_the_command_prints_json():
    done = command("doctor", "mlp", "--threads", 1, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["model"]["name"] == "mlp"
