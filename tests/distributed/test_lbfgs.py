"""L-BFGS in several processes: the same branches in all, and the numbers of one process on the whole batch."""

import problem
import torch
import torch.distributed as dist
from processes import run_processes

from adaqn import LBFGS, StorageOptions

STEPS, ITERATIONS = 6, 10
PLAIN = {"max_iter": ITERATIONS, "history_size": 10, "tolerance_change": 0.0, "max_eval": 60}
CASES = {
    "kronecker": {},
    "strong Wolfe": {"line_search_fn": "strong_wolfe", "scaling": "identity"},
    "backtracking": {"line_search_fn": "backtracking", "scaling": "adam"},
    "no search": {"line_search_fn": None, "lr": 0.3, "scaling": "identity"},
    "no search, kronecker": {"line_search_fn": None, "lr": 0.3},
    "damped": {"scaling": "adam", "damping": 0.1},
    "budget": {"max_eval": 7},
    "groups": {},
    "maximize": {"maximize": True},
    "walls": {"scaling": "adam"},
}


def net_and_optimizer(kind, name, **options):
    net = problem.model()
    options = {**PLAIN, **CASES.get(name, {}), **options}
    params = list(net.parameters())
    net = problem.wrapped(net, kind)
    if name == "groups":
        params = list(net.parameters())
        params = [{"params": params[:2]}, {"params": params[2:], "lr": 0.25}]
    else:
        params = net.parameters()
    return net, LBFGS(params, **options)


def closure_of(net, opt, name, batch=64):
    x, target = problem.share(problem.data(0, batch))
    last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1
    calls = []

    def closure():
        opt.zero_grad()
        loss = problem.per_example(net(x), target).mean() + 0.05 * net_square(net)
        if name == "maximize":
            loss = -loss
        if name == "walls" and len(calls) % 7 == 3 and last:
            loss = loss * torch.nan
        calls.append(1)
        loss.backward()
        return loss

    return closure, calls


def net_square(net):
    return sum((p.full_tensor() if hasattr(p, "full_tensor") else p).square().sum() for p in net.parameters())


def run(kind, name, **options):
    net, opt = net_and_optimizer(kind, name, **options)
    closure, calls = closure_of(net, opt, name)
    path = []
    for _ in range(STEPS):
        opt.step(closure)
        path.append(problem.vector(net.parameters()))
    return torch.stack(path), opt.stats, len(calls)


def all_cases(kind, names, **options):
    return {name: run(kind, name, **options) for name in names}


def test_proto():
    import time
    expected = all_cases(None, CASES)
    for kind, count, o in (("ddp", 2, {}), ("ddp", 4, {}), ("ddp", 2, {"storage": StorageOptions(shard_history=True)})):
        t = time.time()
        found = run_processes(count, run_all, kind, o)
        print(kind, count, o, time.time() - t)
        for name in CASES:
            path, stats, calls = expected[name]
            d = max(float((f[name][0] - path).abs().max()) for f in found)
            same = all(torch.equal(f[name][0], found[0][name][0]) for f in found)
            print(f"  {name:22s} {d:.1e} {same} {calls} {[f[name][2] for f in found]} {found[0][name][1] == stats} {stats.iterations} {stats.stored} {stats.skipped} {stats.restarts} {stats.nonfinite} {stats.loss:.6f} {stats.reason}")


def run_all(kind, options):
    return all_cases(kind, CASES, **options)
