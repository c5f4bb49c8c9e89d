"""Every example: saved, killed and resumed, it ends with the same bits."""

import pytest
import torch
from killing import EXAMPLES, assert_goes_on_with_the_same_numbers, forked, started
from safetensors.torch import load_file

from oracles import assert_same

ALONE = [
    ("plain.py",),
    ("mixed_precision.py", "--precision=float16"),
    ("mixed_precision.py",),
    ("accumulation_and_clipping.py",),
    ("schedulers.py",),
    ("averaged_weights.py",),
    ("batchnorm.py",),
    ("pinn.py", "--steps=8", "--points=200"),
]
COMPILED = pytest.param(
    ("compiled.py",),
    marks=[
        pytest.mark.slow,  # a C++ compiler has to run
        pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),  # inductor's own use
    ],
)


ELSEWHERE = {"ddp.py", "fsdp2.py", "deepxde_burgers.py"}
"""In tests/distributed/test_examples.py and tests/integrations/test_deepxde.py."""


def test_every_example_is_run():
    alone = {example[0] for example in (*ALONE, COMPILED.values[0])}
    frameworks = {"lightning_model.py", "accelerate_loop.py", "huggingface_trainer.py"}
    assert {path.name for path in EXAMPLES.glob("[!_]*.py")} == alone | frameworks | ELSEWHERE


def loaded(path):
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("example", [*ALONE, COMPILED], ids=" ".join)
def test_torch_alone(example, tmp_path, capsys):
    name, *options = example
    how = started if name in ("plain.py", "compiled.py") else forked
    folders = assert_goes_on_with_the_same_numbers(name, tmp_path, *options, capsys=capsys, how=how)
    assert_same(*(loaded(folder / "checkpoint.pt") for folder in folders))


LIGHTNINGS_OWN = [
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:The 'train_dataloader' does not have many workers",
]


@pytest.mark.filterwarnings(*LIGHTNINGS_OWN)
def test_lightning(tmp_path, capsys):
    folders = assert_goes_on_with_the_same_numbers("lightning_model.py", tmp_path, capsys=capsys, how=forked)
    ours, theirs = (loaded(folder / "last.ckpt") for folder in folders)
    assert_same(ours["state_dict"], theirs["state_dict"])
    assert_same(ours["optimizer_states"][0]["state"], theirs["optimizer_states"][0]["state"])
    logged = (folders[1] / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "adaqn/stored" in logged
    assert "adaqn/monitored_loss" in logged


def test_accelerate(tmp_path, capsys):
    folders = assert_goes_on_with_the_same_numbers("accelerate_loop.py", tmp_path, capsys=capsys, how=forked)
    for name in ("pytorch_model.bin", "optimizer.bin"):
        ours, theirs = (loaded(folder / "checkpoint" / name) for folder in folders)
        assert_same(ours.get("state", ours), theirs.get("state", theirs))


def test_huggingface(tmp_path, capsys):
    folders = assert_goes_on_with_the_same_numbers("huggingface_trainer.py", tmp_path, capsys=capsys, how=forked)
    assert_same(*(load_file(folder / "checkpoint-80" / "model.safetensors") for folder in folders))
    assert_same(*(loaded(folder / "checkpoint-80" / "optimizer.pt")["state"] for folder in folders))
