"""torch.compile: of the model, of the model in place, and of ``opt.step``."""

import pytest
import torch
from torch import nn

from adaqn import AdaQN, Monitor


def batch(k, size=32):
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(size, 6, generator=generator)
    return x, torch.sin(x.sum(1, keepdim=True))


def trained(wrap=None, wrap_step=None, *, monitor_compiled=False, start=0, saved=None, steps=20):
    """The weights after some steps, with a model and a step that may be compiled."""
    torch.manual_seed(1)
    model, loss_fn = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)), nn.MSELoss()
    called = wrap(model) if wrap else model
    monitor = Monitor(called if monitor_compiled else model, loss_fn, batch(1000, 64))
    opt = AdaQN(model.parameters(), monitor=monitor)
    if saved is not None:
        model.load_state_dict(saved[0])
        opt.load_state_dict(saved[1])
    step = wrap_step(opt.step) if wrap_step else opt.step
    for k in range(start, steps):
        opt.zero_grad()
        x, target = batch(k)
        loss_fn(called(x), target).backward()
        step()
    return model.state_dict(), opt.state_dict()


def compiled(function):
    return torch.compile(function, backend="aot_eager")  # every part of the compiler but the one that calls gcc


def compiled_in_place(model):
    model.compile(backend="aot_eager")
    return model


def assert_same_weights(ours, theirs):
    assert all(torch.equal(ours[0][name], theirs[0][name]) for name in ours[0])


@pytest.mark.parametrize("wrap", [compiled, compiled_in_place])
@pytest.mark.parametrize("monitor_compiled", [False, True])
def test_a_compiled_model_trains_and_resumes_with_the_same_numbers(wrap, monitor_compiled):
    expected = trained()
    assert_same_weights(trained(wrap, monitor_compiled=monitor_compiled), expected)
    saved = trained(wrap, monitor_compiled=monitor_compiled, steps=8)
    assert_same_weights(trained(wrap, monitor_compiled=monitor_compiled, start=8, saved=saved), expected)


def test_a_compiled_step_is_the_step():
    """It is left out of what is compiled."""
    assert_same_weights(trained(wrap_step=compiled), trained())


def test_a_closure_may_hold_a_compiled_model():
    graphs = []
    model = nn.Linear(6, 1)
    net = torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    opt = AdaQN(model.parameters(), reject="none")

    def closure():
        opt.zero_grad()
        loss = net(batch(0)[0]).square().mean()
        loss.backward()
        return loss

    first = opt.step(closure)
    assert opt.step(closure) < first
    assert len(graphs) == 1
