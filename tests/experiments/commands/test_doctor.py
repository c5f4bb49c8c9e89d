"""What the doctor says is what the optimizer takes."""

import json
import subprocess
import sys

import pytest
from torch import nn

from adaqn import AdaQN
from adaqn.experiments.commands import doctor
from adaqn.experiments.errors import UserError


def small():
    return nn.Linear(20, 30)


def test_memory_is_what_the_optimizer_announces(monkeypatch):
    monkeypatch.setattr(doctor, "READ_BYTES", 1 << 20)
    found = doctor.examine(f"{__name__}:small", threads=1)
    assert found["model"]["parameters"] == 630
    settings = found["model"]["settings"]
    assert settings["paper"]["bytes"] == AdaQN(small().parameters(), preset="paper").state_size()
    assert settings["modern"]["bytes"] < settings["paper"]["bytes"]
    assert all(cost["seconds_per_step"] > 0 for cost in settings.values())
    assert found["packages"]["torch"]


@pytest.mark.parametrize(
    "name, message",
    [
        ("resnet", "a model is one of"),
        ("no.such:thing", "cannot make a model"),
        ("json:loads", "cannot make a model"),
        ("time:time", "returned float, not a torch.nn.Module"),
    ],
)
def test_what_is_no_model_is_one_error(name, message):
    with pytest.raises(UserError, match=message):
        doctor.load_model(name, None)


def test_the_command_prints_json():
    done = subprocess.run([sys.executable, "-m", "adaqn", "doctor", "mlp", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["name"] == "mlp"
