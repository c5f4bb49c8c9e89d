"""The empirical Fisher product equals the explicit per-example matrix, on every kind of kernel."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import inside
from adaqn import EmpiricalFisher, PairOptions
from adaqn.core.curvature import empirical_fisher_product
from adaqn.parameters.flat import FlatParameters
from oracles import as_printed


class Recurrent(nn.Module):
    def __init__(self, kind, dtype=torch.float64):
        super().__init__()
        self.cells = getattr(nn, kind)(3, 5, 2, batch_first=True, dtype=dtype)
        self.out = nn.Linear(5, 4, dtype=dtype)

    def forward(self, x):
        return self.out(self.cells(x)[0])


def per_example(output, target):
    losses = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
    return losses.view(target.shape).mean(1)


def batch(dtype=torch.float64, size=6):
    return torch.randn(size, 7, 3, dtype=dtype), torch.randint(4, (size, 7))


def explicit_product(model, loss, data, s):
    """(1/|H|) Σ g_i (g_i·s) from gradients taken one example at a time."""
    x, target = data
    rows = []
    for i in range(len(x)):
        value = loss(model(x[i : i + 1]), target[i : i + 1]).sum()
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(model.parameters()))]))
    J = torch.stack(rows)
    return J.T @ (J @ s) / len(x)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_the_explicit_per_example_matrix(kind, dtype):
    model, data = Recurrent(kind, dtype), batch(dtype)
    curvature = EmpiricalFisher(model, per_example, [data])
    flat = FlatParameters(list(model.parameters()))
    curvature.attach(flat)
    candidate = flat.gather(flat.new())
    s = torch.randn(flat.n, dtype=dtype)
    y = curvature.product(s, candidate, out=flat.new())
    expected = explicit_product(model, per_example, data, s)
    torch.testing.assert_close(y, expected, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-7)


class NoForwardMode(torch.autograd.Function):
    """The identity, as a kernel of which only the backward pass is known."""

    @staticmethod
    def forward(ctx, losses):
        return losses.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_forward_mode_and_double_backward_agree(kind):
    model, (x, target) = Recurrent(kind), batch()
    names, w = zip(*model.named_parameters(), strict=True)
    s = [torch.randn_like(p) for p in w]

    def losses(params):
        return per_example(functional_call(model, dict(zip(names, params, strict=True)), (x,)), target)

    expected = empirical_fisher_product(losses, w, s)
    torch.testing.assert_close(
        empirical_fisher_product(lambda params: NoForwardMode.apply(losses(params)), w, s), expected
    )


def test_equals_torch_func_on_a_feed_forward_net():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x, target = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def one(p, xi, ti):
        return (functional_call(model, p, (xi,)) - ti).pow(2).mean()

    rows = vmap(grad(one), in_dims=(None, 0, 0))(params, x, target)
    J = torch.cat([g.flatten(1) for g in rows.values()], dim=1)
    curvature = EmpiricalFisher(model, lambda out, t: (out - t).pow(2).mean(1), [(x, target)])
    flat = FlatParameters(list(model.parameters()))
    curvature.attach(flat)
    s = torch.randn(flat.n, dtype=torch.float64)
    y = curvature.product(s, flat.gather(flat.new()), out=flat.new())
    torch.testing.assert_close(y, J.T @ (J @ s) / 9)


def training(model, data, **options):
    monitor = lambda: per_example(model(data[0]), data[1]).detach()  # noqa: E731
    batches = [batch(), batch(), batch()]
    curvature = EmpiricalFisher(model, per_example, batches)
    pairs = PairOptions(curvature=curvature)
    return as_printed(model.parameters(), lr=0.05, cycle_length=2, monitor=monitor, pairs=pairs, **options)


def train(opt, model, data, steps):
    for _ in range(steps):
        opt.zero_grad()
        per_example(model(data[0]), data[1]).mean().backward()
        opt.step()


def test_the_product_is_taken_at_the_candidate_and_the_weights_stay():
    model, data = Recurrent("RNN"), batch()
    opt = training(model, data)
    train(opt, model, data, 1)
    seen, curvature = [], inside.state(opt).curvature
    product = curvature.product

    def spy(s, candidate, out):
        before = [p.detach().clone() for p in model.parameters()]
        y = product(s.clone(), candidate, out)
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        seen.append((y.clone(), s.clone(), candidate.clone(), curvature.position - 1))
        return y

    curvature.product = spy
    train(opt, model, data, 5)
    y, s, candidate, position = seen[-1]
    flat = FlatParameters(list(model.parameters()))
    with flat.swapped(candidate, backup=flat.new()):
        expected = explicit_product(model, per_example, curvature.batches[position], s)
    torch.testing.assert_close(y, expected)


def test_no_fisher_vectors_in_memory():
    model, data = Recurrent("RNN"), batch()
    opt, paper = training(model, data), as_printed(model.parameters())
    n = sum(p.numel() for p in model.parameters())
    assert paper.state_size() - opt.state_size() == 100 * n * 8
    train(opt, model, data, 10)
    assert opt.stats.stored > 0
    assert "fisher" not in opt.state[model.out.weight]


def test_resume_takes_up_at_the_batch_that_is_due():
    import copy

    model, data = Recurrent("RNN"), batch()
    opt = training(model, data)
    train(opt, model, data, 9)
    other = Recurrent("RNN")
    other.load_state_dict(model.state_dict())
    resumed = training(other, data)
    inside.method(resumed).curvature.batches = inside.method(opt).curvature.batches
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    train(opt, model, data, 9)
    train(resumed, other, data, 9)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_dropout_and_buffers_are_left_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    curvature = EmpiricalFisher(model, lambda out, t: (out - t).pow(2)[:, 0], [(torch.randn(8, 3), torch.randn(8, 1))])
    flat = FlatParameters(list(model.parameters()))
    curvature.attach(flat)
    args = (torch.randn(flat.n), flat.gather(flat.new()))
    before, state = model[1].running_mean.clone(), torch.get_rng_state()
    first = curvature.product(*args, out=flat.new())
    assert torch.equal(first, curvature.product(*args, out=flat.new()))
    assert torch.equal(model[1].running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_complex_parameters():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, dtype=torch.complex128))

        def forward(self, x):
            return x @ self.w

    model, x = Complex(), torch.randn(6, 4, dtype=torch.complex128)
    loss = lambda out, t: out.abs().pow(2)  # noqa: E731
    curvature = EmpiricalFisher(model, loss, [(x, torch.zeros(6))])
    flat = FlatParameters(list(model.parameters()))
    curvature.attach(flat)
    s = torch.randn(8, dtype=torch.float64)
    rows = [torch.view_as_real(torch.autograd.grad(loss(model(xi), None), model.w)[0]).reshape(-1) for xi in x]
    J = torch.stack(rows)
    y = curvature.product(s, flat.gather(flat.new()), out=flat.new())
    torch.testing.assert_close(y, J.T @ (J @ s) / 6)


def test_bad_uses_are_one_clear_error():
    model, (x, target) = Recurrent("RNN"), batch()
    with pytest.raises(ValueError, match=r"wrap a single one as \[\(inputs, target\)\]"):
        EmpiricalFisher(model, per_example, (x, target))
    curvature = EmpiricalFisher(model, per_example, [(x, target)])
    with pytest.raises(ValueError, match="parameter 0 of the optimizer is not one of the model"):
        as_printed([nn.Parameter(torch.ones(2))], pairs=PairOptions(curvature=curvature))
    opt = as_printed(model.parameters(), pairs=PairOptions(curvature=curvature))
    with pytest.raises(ValueError, match="is not one of the model"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert len(opt.param_groups) == 1

    def run(batches, loss=per_example):
        pairs = PairOptions(curvature=EmpiricalFisher(model, loss, batches))
        opt = as_printed(model.parameters(), cycle_length=1, reject="none", pairs=pairs)
        train(opt, model, (x, target), 3)

    with pytest.raises(ValueError, match="used up"):
        run(iter([(x, target)]))
    with pytest.raises(ValueError, match=r"one loss per example, a 1-D tensor; got shape \(\)"):
        run([(x, target)], lambda out, t: per_example(out, t).mean())
