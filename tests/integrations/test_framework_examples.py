"""Every example: saved, killed and resumed, it ends with the same bits."""

import pytest
import torch
from killing import assert_goes_on_with_the_same_numbers
from safetensors.torch import load_file

from oracles import assert_same

ALONE = [
    ("plain.py",),
    ("mixed_precision.py", "float16"),
    ("mixed_precision.py", "bfloat16"),
    ("accumulation_and_clipping.py",),
    ("schedulers.py",),
    ("averaged_weights.py",),
    ("pinn.py", "8", "200"),
    pytest.param(
        ("compiled.py",),
        marks=[
            pytest.mark.slow,  # a C++ compiler has to run
            pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),  # inductor's own use
        ],
    ),
]


def loaded(path):
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("example", ALONE, ids=" ".join)
def test_torch_alone(example, tmp_path, capsys):
    name, *arguments = example
    paths = tmp_path / "killed.pt", tmp_path / "undisturbed.pt"
    assert_goes_on_with_the_same_numbers(name, *paths, *arguments, capsys=capsys)
    assert_same(*map(loaded, paths))


LIGHTNINGS_OWN = [
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:The 'train_dataloader' does not have many workers",
]


@pytest.mark.filterwarnings(*LIGHTNINGS_OWN)
def test_lightning(tmp_path, capsys):
    folders = tmp_path / "killed", tmp_path / "undisturbed"
    assert_goes_on_with_the_same_numbers("lightning_model.py", *folders, capsys=capsys)
    ours, theirs = (loaded(folder / "last.ckpt") for folder in folders)
    assert_same(ours["state_dict"], theirs["state_dict"])
    assert_same(ours["optimizer_states"][0]["state"], theirs["optimizer_states"][0]["state"])
    logged = (folders[1] / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "adaqn/stored" in logged
    assert "adaqn/monitored_loss" in logged


def test_accelerate(tmp_path, capsys):
    folders = tmp_path / "killed", tmp_path / "undisturbed"
    assert_goes_on_with_the_same_numbers("accelerate_loop.py", *folders, capsys=capsys)
    for name in ("pytorch_model.bin", "optimizer.bin"):
        ours, theirs = (loaded(folder / "checkpoint" / name) for folder in folders)
        assert_same(ours.get("state", ours), theirs.get("state", theirs))


def test_huggingface(tmp_path, capsys):
    folders = tmp_path / "killed", tmp_path / "undisturbed"
    assert_goes_on_with_the_same_numbers("huggingface_trainer.py", *folders, capsys=capsys)
    assert_same(*(load_file(folder / "checkpoint-80" / "model.safetensors") for folder in folders))
    assert_same(*(loaded(folder / "checkpoint-80" / "optimizer.pt")["state"] for folder in folders))
