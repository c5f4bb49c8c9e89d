"""Beside torch's own tools: scalers, accumulation, clipping, averaging. Schedulers are in ``integrations``."""

import copy

import torch
from torch import nn
from torch.optim import lr_scheduler

from adaqn import PairOptions
from inside import kept
from oracles import NoisyValley, Vector, quiet, run


def test_a_copy_of_a_scheduled_optimizer_steps_itself():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters())
    lr_scheduler.StepLR(opt, 3)
    other_model, other = copy.deepcopy((model, opt))
    run(other, other_model, problem, range(5))
    assert (opt.stats.steps, other.stats.steps) == (0, 5)
    assert torch.equal(model.vector(), problem.w0)


class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def data(count=64):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 6, generator=generator)
    return x, torch.sin(x.sum(1, keepdim=True))


def test_grad_scaler_unscales_and_skips():
    x, target = data()
    plain, scaled = Net(), Net()
    a, b = quiet(plain.parameters(), cycle_length=3), quiet(scaled.parameters(), cycle_length=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for k in range(12):
        a.zero_grad()
        b.zero_grad()
        nn.functional.mse_loss(plain(x), target).backward()
        scaler.scale(nn.functional.mse_loss(scaled(x), target)).backward()
        if k == 7:
            scaled[0].weight.grad[0, 0] = torch.inf  # an overflow: this step is not taken
        scaler.step(b)
        scaler.update()
        if k != 7:
            a.step()
    assert b.stats.steps == 11
    assert b.stats.nonfinite == 0
    torch.testing.assert_close(list(plain.parameters()), list(scaled.parameters()), rtol=1e-4, atol=1e-5)


def test_gradient_accumulation_is_the_large_batch():
    x, target = data()
    large, small = Net().double(), Net().double()
    x, target = x.double(), target.double()
    a, b = quiet(large.parameters(), cycle_length=3), quiet(small.parameters(), cycle_length=3)
    for _ in range(12):
        a.zero_grad()
        b.zero_grad()
        nn.functional.mse_loss(large(x), target).backward()
        for part, goal in zip(x.chunk(4), target.chunk(4), strict=True):
            (nn.functional.mse_loss(small(part), goal) / 4).backward()
        a.step()
        b.step()
    torch.testing.assert_close(list(large.parameters()), list(small.parameters()), rtol=1e-8, atol=1e-10)


def test_clipped_gradients_are_what_the_history_sees():
    x, target = data()
    net = Net()
    opt = quiet(net.parameters(), cycle_length=3, pairs=PairOptions(fisher_size=5))
    for _ in range(8):
        opt.zero_grad()
        nn.functional.mse_loss(net(x), target).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        opt.step()
    torch.testing.assert_close(kept(opt, "fisher").norm(dim=1), torch.full((5,), 1e-3), rtol=0.01, atol=0.0)


def test_autocast_training():
    x, target = data()
    net = Net()
    opt = quiet(net.parameters(), cycle_length=3)
    losses = []
    for _ in range(30):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(net(x).float(), target)
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert opt.stats.stored == 9
    assert losses[-1] < 0.8 * losses[0]


def test_swa_utils_average_the_iterates():
    x, target = data()
    net = Net()
    opt, averaged = quiet(net.parameters()), torch.optim.swa_utils.AveragedModel(net)
    iterates = []
    for _ in range(10):
        opt.zero_grad()
        nn.functional.mse_loss(net(x), target).backward()
        opt.step()
        averaged.update_parameters(net)
        iterates.append(nn.utils.parameters_to_vector(net.parameters()).detach())
    mean = nn.utils.parameters_to_vector(averaged.module.parameters()).detach()
    torch.testing.assert_close(mean, torch.stack(iterates).mean(0))


def test_step_hooks_run():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt, seen = quiet(model.parameters()), []
    opt.register_step_pre_hook(lambda *_: seen.append("before"))
    opt.register_step_post_hook(lambda *_: seen.append("after"))
    run(opt, model, problem, range(2))
    assert seen == ["before", "after"] * 2


def test_zero_grad_and_parameters_used_twice():
    """A tied weight is one parameter."""
    layer = nn.Linear(4, 4, bias=False)
    net = nn.Sequential(layer, nn.Tanh(), layer)
    opt = quiet(net.parameters(), cycle_length=2)
    for _ in range(8):
        opt.zero_grad()
        net(torch.randn(5, 4)).pow(2).sum().backward()
        opt.step()
    assert len(opt.state) == 1
    opt.zero_grad()
    assert layer.weight.grad is None
