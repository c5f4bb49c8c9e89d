"""One problem with whole gradients for any number of processes: the batch is cut into equal shares, and stays."""

import problem
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from adaqn import LBFGS

ITERATIONS = 40
OPTIONS = {"max_iter": 10, "max_eval": 60, "history_size": 10, "tolerance_change": 0.0, "scaling": "kronecker"}
CASES = {
    "kronecker": {},
    "strong wolfe": {"line_search_fn": "strong_wolfe", "scaling": "identity"},
    "backtracking": {"line_search_fn": "backtracking", "scaling": "adam"},
    "no search": {"line_search_fn": None, "lr": 0.3, "scaling": "identity"},
    "no search, kronecker": {"line_search_fn": None, "lr": 0.3},
    "damped": {"scaling": "adam", "damping": 0.1},
    "secant": {"scaling": "secant"},
    "kronecker secant": {"scaling": "kronecker_secant"},
    "groups": {"maximize": True},
    "adam groups": {"scaling": "adam", "maximize": True},
    "poisoned": {"scaling": "adam"},
    "poisoned, no search": {"scaling": "adam", "line_search_fn": None, "lr": 0.3},
    "rising": {"scaling": "adam", "line_search_fn": "strong_wolfe", "noise": 0.0},
    "budget": {"max_eval": 7},
    "tolerances": {"scaling": "adam", "max_iter": 60, "tolerance_change": 1e-6, "tolerance_grad": 1e-3},
    "flat": {"max_iter": 60},
}
"""By name the options of a run; some names say what is special about its loss or its parameters."""


class Ridge(nn.Linear):
    """A layer that returns the square of its weights, too: rounding errors do not grow where the loss has one floor."""

    def forward(self, x):
        return super().forward(x), self.weight.square().sum() + self.bias.square().sum()


class Net(nn.Sequential):
    def forward(self, x):
        hidden, first = self[0](x)
        output, second = self[1](hidden.tanh())
        return output, first + second


def model(dtype=torch.float64):
    torch.manual_seed(7)
    return Net(Ridge(5, 9), Ridge(9, 5)).to(dtype)


def engine(net, kind):
    if kind == "hsdp":  # sharded over two processes, and that twice
        return fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))
    return problem.wrapped(net, kind)


def made(kind, name="kronecker", **options):
    """(The model as an engine has it, its optimizer.)"""
    net = engine(model(options.pop("dtype", torch.float64)), kind)
    params = list(net.parameters())
    if "groups" in name:
        params = [{"params": params[:2]}, {"params": params[2:], "lr": 0.25}]
    return net, LBFGS(params, **{**OPTIONS, **CASES[name], **options})


class Loss:
    """The closure: the loss of this process's share, and now and then one that is no number in the last process.

    A "rising" loss does not fall any more after twenty evaluations, whatever its gradient says: no search succeeds.
    """

    def __init__(self, net, opt, name="kronecker", dtype=torch.float64):
        self.net, self.opt, self.name, self.calls = net, opt, name, 0
        self.x, self.target = problem.share(problem.data(0, problem.BATCH, dtype))
        self.is_last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1

    def __call__(self):
        self.opt.zero_grad()
        output, square = self.net(self.x)
        loss = problem.per_example(output.to(self.target.dtype), self.target).mean() + 0.1 * square
        loss = loss * {"flat": 0.0, "groups": -1.0, "adam groups": -1.0}.get(self.name, 1.0)
        if "poisoned" in self.name and self.calls % 7 == 3 and self.is_last:
            loss = loss * torch.nan
        self.calls += 1
        loss.backward()
        return loss.detach() + (self.calls if self.name == "rising" and self.calls > 20 else 0.0)


def trained(net, opt, loss, iterations=ITERATIONS):
    """The weights after each step."""
    path = []
    for _ in range(max(1, iterations // opt.param_groups[0]["max_iter"])):
        opt.step(loss)
        path.append(problem.vector(net.parameters()))
    return torch.stack(path)


def counts(opt):
    """All that is counted, which rounding does not change."""
    s = opt.stats
    return s.iterations, s.evaluations, s.stored, s.skipped, s.restarts, s.nonfinite, s.pairs, s.reason


def run(kind, name, **options):
    """(Path, counts, calls of the closure.)"""
    net, opt = made(kind, name, **options)
    loss = Loss(net, opt, name)
    return trained(net, opt, loss), counts(opt), loss.calls


def runs(kind, names, options):
    return {name: run(kind, name, **options) for name in names}


def assert_same(found, expected, atol=1e-9):
    """Every process ran as the others, to the bit, and as one process did, but for rounding."""
    for name, (path, counted, calls) in expected.items():
        for theirs, their_counts, their_calls in (each[name] for each in found):
            assert torch.equal(theirs, found[0][name][0]), name
            assert (their_counts, their_calls) == (counted, calls), name
            assert torch.allclose(theirs, path, rtol=0.0, atol=atol), (name, (theirs - path).abs().max())
