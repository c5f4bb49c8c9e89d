"""The host waits for the device at the end of a cycle, twice at most, and in no other step (D32)."""

import math
import statistics

import pytest
import torch
from torch._subclasses import FakeTensorMode

from adaqn import (
    AdaQN,
    Kronecker,
    Monitor,
    Outcome,
    PairOptions,
    RejectOptions,
    RotatingMonitor,
    Scaling,
    StorageOptions,
)
from adaqn.core.looks import margin
from reads import Operations, reads

PRESETS = pytest.mark.parametrize("preset", ["kronecker", "modern", "paper"])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * self.layers(x)[:, 0]


def data(batches=1, size=64):
    torch.manual_seed(1)
    found = [(x := torch.randn(size, 6), x.sum(1).sin() + 0.1 * torch.randn(size)) for _ in range(batches)]
    return found


def groups(model, *, weight_decay=0.0, apart=False):
    if not apart:
        return [{"params": list(model.parameters()), "weight_decay": weight_decay}]
    first, *others = model.parameters()
    return [{"params": [first], "lr": 1e-3, "weight_decay": weight_decay}, {"params": others}]


def set_gradients(model, batch, *, bad=False):
    model.zero_grad()
    x, target = batch
    torch.nn.functional.mse_loss(model(x), target).backward()
    if bad:
        model.layers[0].weight.grad[1, 2] = math.nan


VARIANTS = {
    "as it is": {},
    "decay": {"weight_decay": 0.1},
    "groups": {"apart": True, "weight_decay": 0.1},
    "auto": {"cycle_length": "auto"},
    "rotating": {"rotating": True},
    "bfloat16": {"storage": StorageOptions(history_dtype=torch.bfloat16, fisher_dtype=torch.bfloat16)},
    "skips": {"pairs": PairOptions(test=lambda ss, sy, yy, eps: False)},
    "rejections": {"reject": RejectOptions(test=lambda new, old: True)},
    "no monitor": {"reject": "none"},
    "maximize": {"maximize": True},
}


@PRESETS
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.filterwarnings("ignore:50 cycles in a row")
def test_no_step_reads_and_the_end_of_a_cycle_reads_twice(preset, variant):
    options = dict(VARIANTS[variant])
    torch.manual_seed(0)
    model, batches, ended = Net(), data(4), []
    rotating = options.pop("rotating", False)
    params = groups(model, **{name: options.pop(name) for name in ("weight_decay", "apart") if name in options})
    loss = torch.nn.MSELoss()
    monitor = RotatingMonitor(model, loss, batches) if rotating else Monitor(model, loss, batches[0])
    if options.get("reject") == "none":
        monitor = None
    opt = AdaQN(params, lr=1e-2, preset=preset, monitor=monitor, on_cycle=ended.append, **options)
    steps = {"ordinary": 0, "last": 0, "bad": 0}
    with reads() as noted:
        for k in range(62):
            bad = k > 25 and k % 6 == 0
            set_gradients(model, batches[k % 4], bad=bad)
            before = len(ended), len(noted.lines)
            opt.step()
            read = noted.lines[before[1] :]
            if k < (25 if rotating else 10):
                continue  # state is made, and the first evaluation of each batch finds out what the loss function is
            is_last = len(ended) > before[0]
            steps["bad" if bad else "last" if is_last else "ordinary"] += 1
            asked_again = is_last and ended[-1].outcome is Outcome.REJECTED  # D39
            assert len(read) <= (2 + asked_again if is_last else 0), "\n".join(read)
    assert min(steps.values()) > 5
    assert opt.stats.nonfinite == steps["bad"]


def test_a_group_whose_step_size_is_a_tensor_of_zero_is_not_read_in_every_step():
    model, (batch,) = Net(), data()
    first, *others = model.parameters()
    sizes = [torch.tensor(0.0), torch.tensor(1e-2)]
    params = [{"params": [first], "lr": sizes[0]}, {"params": others, "lr": sizes[1]}]
    opt = AdaQN(params, reject="none", cycle_length=20)
    for _ in range(3):
        set_gradients(model, batch)
        opt.step()
    with reads() as noted:
        set_gradients(model, batch)
        opt.step()
    assert noted.lines == []


class Curious(Scaling):
    def update(self, g):
        self.size = float(g.norm())  # the deliberate read


def test_a_read_is_found_with_its_line():
    model, (batch,) = Net(), data()
    opt = AdaQN(model.parameters(), reject="none", scaling=Curious())
    with reads() as noted:
        set_gradients(model, batch)
        opt.step()
    (line,) = [line for line in noted.lines if "deliberate" in line]
    assert "test_no_waiting.py" in line


@PRESETS
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # a scaling is copied, empty as it is
def test_a_step_needs_no_values_at_all(preset):
    """Tensors that have no values can be trained, until a cycle ends."""
    with FakeTensorMode():
        params = [torch.nn.Parameter(torch.randn(shape)) for shape in ((5, 7), (5,), (), (3, 4, 2))]
        opt = AdaQN(params, preset=preset, reject="none", cycle_length=20, weight_decay=0.1)
        for _ in range(12):
            for p in params:
                p.grad = torch.randn(p.shape)
            opt.step()


@PRESETS
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"pairs": PairOptions(memory_size=3)}], ids=["as it is", "decay", "pairs"]
)
def test_an_ordinary_step_is_few_operations(preset, options):
    """A count is not a timing, but where kernels are short each operation is a launch. The work on bases is apart."""
    params = [torch.nn.Parameter(torch.randn(16, 16)) for _ in range(20)]
    scaling = {"scaling": Kronecker(refresh=1000)} if preset == "kronecker" else {}
    opt = AdaQN(params, preset=preset, reject="none", **scaling, **options)
    counts = []
    for _ in range(60):
        for p in params:
            p.grad = torch.randn(16, 16)
        cycles = opt.stats.cycles
        with Operations() as operations:
            opt.step()
        if opt.stats.cycles == cycles:
            counts.append(operations.count)
    usual = 10 if preset == "paper" else 0
    assert opt.stats.pairs == (options["pairs"].memory_size if "pairs" in options else usual)
    assert statistics.median(counts[-20:]) <= 150  # bases that are due after all are in a few steps only


def counted(shapes, missing=lambda step, i: False, groups=lambda params: params, **kronecker):
    """The operations of a usual step of the default, the work on bases apart."""
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    opt = AdaQN(groups(params), reject="none", scaling=Kronecker(refresh=1000, **kronecker))
    counts = []
    for step in range(24):
        for i, p in enumerate(params):
            p.grad = None if missing(step, i) else torch.randn(p.shape)
        with Operations() as operations:
            opt.step()
        counts.append(operations.count)
    return statistics.median(counts[-10:])


SQUARE = [(16, 16)] * 20
LAYER = [(96, 32), (96,), (32, 32), (32,), (128, 32), (128,), (32, 128), (32,), (32,)]
"""Of a transformer: six shapes of matrices with the two embeddings."""


@pytest.mark.parametrize(
    "shapes, options, most",
    [
        ([(16, 16), (16,)] * 10, {}, 150),
        (SQUARE, {"block_size": 8}, 150),
        (SQUARE, {"groups": lambda ps: [{"params": [p], "momentum": 0.5 + 0.02 * i} for i, p in enumerate(ps)]}, 150),
        (SQUARE, {"missing": lambda step, i: (step + i) % 2 == 0}, 150),
        (SQUARE, {"missing": lambda step, i: (7 * i + step**2) % 5 == 0}, 150),
        ([(65, 32), (16, 32), *LAYER, *LAYER], {}, 200),
    ],
    ids=["biases", "cut blocks", "own momentum", "in turn", "some missing", "transformer"],
)
def test_an_ordinary_step_is_few_operations_for_other_parameters_too(shapes, options, most):
    """What docs/cost.md says of it: with the number of shapes it grows, not with that of tensors."""
    assert counted(shapes, **options) <= most


def test_the_first_verdict_of_a_process_reads_no_more_than_others():
    """How lenient a first look is, is found once, and without a tensor."""
    model, (batch,) = Net(), data(size=128)
    opt = AdaQN(model.parameters(), lr=1e-2, monitor=Monitor(model, torch.nn.MSELoss(), batch))
    margin.cache_clear()
    with reads() as noted:
        for _ in range(12):
            set_gradients(model, batch)
            opt.step()
    assert margin.cache_info().misses == 1, "there was a first look"
    assert [line for line in noted.lines if "core/looks.py" in line] == []
