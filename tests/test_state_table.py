"""The table of memory on the first screen is that of the code, and its formulas are those of the optimizers."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from adaqn import LBFGS, AdaQN

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "state_table.py"))


@pytest.mark.parametrize("page", SCRIPT["PAGES"], ids=lambda page: page.name)
def test_the_pages_have_the_table_of_today(page):
    text = page.read_text(encoding="utf-8")
    assert SCRIPT["with_table"](text) == text, "run: make memory-table"
    assert "measured on CPUs; CUDA and NCCL are untested" in text


def test_the_largest_model_is_gpt2():
    assert SCRIPT["weights"](SCRIPT["gpt_shapes"](**SCRIPT["MODELS"]["124 million (GPT-2)"])) == 124_439_808


def test_soap_takes_what_is_said():
    from pytorch_optimizer import SOAP

    shapes = [(5, 7), (6,), (3, 2, 4), (10_001, 3)]
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    opt = SOAP(params)
    for _ in range(2):
        for p in params:
            p.grad = torch.randn_like(p)
        opt.step()
    tensors = [
        t
        for entry in opt.state.values()
        for value in entry.values()
        for t in (value if isinstance(value, list) else [value])
    ]
    assert SCRIPT["soap_bytes"](shapes) == sum(4 * t.numel() for t in tensors if isinstance(t, torch.Tensor))


def test_adaqn_takes_on_the_meta_device_what_it_takes_here():
    shapes = [(30, 20), (30,)]
    here = AdaQN([nn.Parameter(torch.ones(shape)) for shape in shapes])
    assert SCRIPT["adaqn_bytes"](shapes) == here.state_size()


@pytest.mark.parametrize("kind", [AdaQN, LBFGS])
def test_a_size_that_people_can_read(kind):
    opt = kind([nn.Parameter(torch.ones(1000))])
    assert isinstance(opt.state_size(), int)
    number, unit = opt.state_size(human=True).split()
    assert unit == ("kB" if opt.state_size() < 1e6 else "MB")
    assert float(number) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(opt.state_size(), rel=0.01)
