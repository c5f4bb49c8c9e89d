"""HessianFree as its users see it: steps against dense oracles, damping, bad batches, saving and loading."""

import copy
import gc
import io
import math
import pickle
import weakref

import pytest
import torch
from dense_gauss_newton import dense_gauss_newton, dense_jacobian, joined
from inside_baselines import in_forward_mode
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from adaqn.baselines.hessian_free import HessianFree
from oracles import relative_error

EXACT = {"cg_tolerance": 0.0, "max_cg_iterations": 2000}


class Classifier(nn.Module):
    def __init__(self, dtype=torch.float64, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 3)).to(dtype)

    def forward(self, x):
        return self.layers(x)


class Task:
    """A classifier and a batch for each step; closures that may be pickled."""

    def __init__(self, dtype=torch.float64, dropout=0.0):
        self.net = Classifier(dtype, dropout)
        self.x, self.y = torch.randn(8, 30, 3, dtype=dtype), torch.randint(3, (8, 30))

    def closure(self, k=0, size=30):
        def evaluate():
            outputs = self.net(self.x[k % 8, :size])
            return cross_entropy(outputs, self.y[k % 8, :size]), outputs

        return evaluate

    def vector(self):
        return joined(self.net.parameters()).detach().clone()

    def run(self, opt, steps):
        path = []
        for k in steps:
            opt.step(self.closure(k))
            path.append(self.vector())
        return torch.stack(path) if path else None


class Number(nn.Module):
    """One weight, which is the output; the loss is a function of it."""

    def __init__(self, value, loss):
        super().__init__()
        self.w, self.loss = nn.Parameter(torch.tensor([value], dtype=torch.float64)), loss

    def closure(self):
        outputs = self.w * 1.0
        return self.loss(outputs).sum(), outputs


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---------------------------------------------------------------------- the step


@pytest.mark.parametrize("preconditioner", ["fisher", "gradient", "none"])
def test_a_quadratic_is_solved_in_one_step(preconditioner):
    net = nn.Linear(6, 2).double()
    x, y = torch.randn(40, 6, dtype=torch.float64), torch.randn(40, 2, dtype=torch.float64)

    def closure():
        outputs = net(x)
        return mse_loss(outputs, y), outputs

    opt = HessianFree(net.parameters(), damping=0.0, preconditioner=preconditioner, **EXACT)
    opt.step(closure)
    best = torch.linalg.lstsq(torch.cat([x, torch.ones_like(x[:, :1])], 1), y).solution
    assert relative_error(torch.cat([net.weight.T, net.bias[None]]).detach(), best) < 1e-9
    assert math.isclose(opt.stats.reduction_ratio, 1.0, rel_tol=1e-9)
    assert opt.stats.rate == 1.0


def test_the_step_is_the_damped_newton_step_of_the_curvature_batch():
    """d = −Λ^½ (G + λI)⁻¹ Λ^½ g, with g of the large batch and G of the small one."""
    task = Task()
    params = list(task.net.parameters())
    loss, _ = task.closure(0)()
    g = joined(torch.autograd.grad(loss, params))
    _, outputs = task.closure(1, size=10)()
    G = dense_gauss_newton(outputs, cross_entropy, task.y[1, :10], params)
    groups = [{"params": params[:2], "lr": 0.5}, {"params": params[2:3]}, {"params": params[3:], "lr": 0.0}]
    scale = joined([torch.full_like(p, lr) for p, lr in zip(params, [0.5, 0.5, 0.8, 0.0], strict=True)]).sqrt()
    d = -scale * torch.linalg.solve(G + 0.7 * torch.eye(len(g), dtype=torch.float64), scale * g)
    before = task.vector()
    opt = HessianFree(groups, lr=0.8, damping=0.7, **EXACT)
    opt.step(task.closure(0), task.closure(1, size=10))
    moved = task.vector() - before
    assert opt.stats.rate == 1.0
    # Backtracking may have preferred an earlier iterate: the last is what the next step starts from.
    solution = joined([opt.state[p]["direction"] for p in params])
    assert relative_error(scale * solution, d) < 1e-8
    assert not moved[-3:].any()
    assert float(g @ moved) < 0.0


@pytest.mark.parametrize("forward_mode", [False, True], ids=["double_backward", "forward_mode"])
def test_structural_damping_enters_the_system(forward_mode):
    rnn, readout = nn.RNN(2, 3, batch_first=True).double(), nn.Linear(3, 3).double()
    params = [*rnn.parameters(), *readout.parameters()]
    x, y = torch.randn(5, 4, 2, dtype=torch.float64), torch.randint(3, (5,))

    def closure():
        hidden, _ = rnn(x)
        outputs = readout(hidden[:, -1])
        return cross_entropy(outputs, y), outputs, hidden

    loss, outputs, hidden = closure()
    g, J = joined(torch.autograd.grad(loss, params, retain_graph=True)), dense_jacobian(hidden, params)
    G = dense_gauss_newton(outputs, cross_entropy, y, params)
    A = G + 0.5 * torch.eye(len(g), dtype=torch.float64) + 0.5 * 0.1 * J.T @ J / 5
    model = nn.ModuleList([rnn, readout]) if forward_mode else None
    opt = HessianFree(params, damping=0.5, structural_damping=0.1, model=model, **EXACT)
    opt.step(lambda: closure()[:2], closure)  # the hidden states of the curvature's batch are enough
    assert in_forward_mode(opt) == forward_mode
    assert relative_error(joined([opt.state[p]["direction"] for p in params]), -torch.linalg.solve(A, g)) < 1e-8


def test_backtracking_and_line_search_lower_the_loss_where_the_model_is_wrong():
    """With next to no damping Newton's steps overshoot: each must still lower the loss by Armijo's share of its slope.

    By how much it falls is left open. The system is close to singular, so that the last digits of the weights decide
    the path within a few steps.
    """
    task = Task()
    params = list(task.net.parameters())
    opt = HessianFree(params, damping=1e-6)
    closure = task.closure()
    rates = []
    for _ in range(15):
        before, g = task.vector(), joined(torch.autograd.grad(closure()[0], params))
        loss = float(opt.step(closure))
        slope = float(g @ (task.vector() - before))
        assert slope < 0.0
        assert float(closure()[0].detach()) <= loss + 0.01 * slope + 1e-12
        rates.append(opt.stats.rate)
    assert rates[0] < 0.5, "the line search was not needed: this tests nothing"


def test_the_loss_halves_in_a_few_steps():
    task = Task()
    opt = HessianFree(task.net.parameters(), damping=0.01)
    losses = [float(opt.step(task.closure())) for _ in range(15)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]


def pseudo_huber(out):
    return (1.0 + out * out).sqrt()


@pytest.mark.parametrize(
    "value, factor", [(0.1, 2 / 3), (0.8, 1.0), (3.0, 3 / 2)], ids=["trusted", "between", "overshot"]
)
def test_damping_follows_the_reduction_ratio(value, factor):
    """√(1+w²): Newton's step is −w(1+w²), right near zero and far too long at 3."""
    net = Number(value, pseudo_huber)
    opt = HessianFree(net.parameters(), damping=1e-9, **EXACT)
    opt.step(net.closure)
    new, old = -(value**3), value
    rho = (pseudo_huber(torch.tensor(new)) - pseudo_huber(torch.tensor(old))) / (
        -0.5 * old**2 * (1 + old**2) / pseudo_huber(torch.tensor(old))
    )
    assert math.isclose(opt.stats.reduction_ratio, float(rho), rel_tol=1e-4)
    assert math.isclose(opt.stats.damping, 1e-9 * factor, rel_tol=1e-12)
    assert (opt.stats.rate < 1.0) == (value == 3.0)
    assert abs(float(net.w.detach())) < value


def test_a_concave_loss_raises_the_damping_until_there_is_a_step():
    net = Number(1.0, torch.sin)  # its second derivative is −sin(1) here
    opt = HessianFree(net.parameters(), damping=0.2)
    opt.step(net.closure)
    assert opt.stats.rejected == 1
    assert math.isclose(opt.stats.damping, 0.3)
    assert float(net.w.detach()) == 1.0
    for _ in range(30):
        opt.step(net.closure)
    assert math.isclose(float(net.w.detach()), -math.pi / 2, rel_tol=1e-3)


def test_maximize_mirrors_minimize():
    down = Task()
    up = copy.deepcopy(down)

    def mirrored(closure):
        def evaluate():
            loss, outputs = closure()
            return -loss, outputs

        return evaluate

    a, b = HessianFree(down.net.parameters()), HessianFree(up.net.parameters(), maximize=True)
    for k in range(4):
        assert torch.equal(a.step(down.closure(k)), -b.step(mirrored(up.closure(k))))
    assert torch.equal(down.vector(), up.vector())


# ---------------------------------------------------------------------- forward mode, noise, graphs


def test_forward_mode_takes_the_same_steps():
    task = Task()
    other = copy.deepcopy(task)
    a, b = HessianFree(task.net.parameters()), HessianFree(other.net.parameters(), model=other.net)
    assert relative_error(other.run(b, range(5)), task.run(a, range(5))) < 1e-6
    assert in_forward_mode(b)


def test_a_kernel_without_forward_mode_falls_back():
    """The float32 LSTM on a CPU is such a kernel."""
    lstm = nn.LSTM(2, 4, batch_first=True)
    x = torch.randn(6, 5, 2)

    def closure():
        hidden, _ = lstm(x)
        return hidden.square().mean(), hidden, hidden

    opt = HessianFree(lstm.parameters(), model=lstm, structural_damping=0.1)
    first = float(opt.step(closure))
    assert not in_forward_mode(opt)
    assert float(opt.step(closure)) < first


def test_dropout_draws_the_same_mask_for_every_trial_and_once_for_the_user():
    task = Task(dropout=0.5)
    opt = HessianFree(task.net.parameters(), model=task.net)
    before = torch.get_rng_state()
    loss = opt.step(task.closure())
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    assert opt.stats.rate > 0.0
    assert task.closure()()[0] < loss  # the mask that the step was made for
    assert torch.equal(torch.get_rng_state(), after)


def test_no_graph_outlives_the_step_and_no_gradient_is_written():
    task = Task()
    seen = []

    def closure():
        loss, outputs = task.closure()()
        seen.append(weakref.ref(outputs))
        return loss, outputs

    opt = HessianFree(task.net.parameters())
    opt.step(closure)
    gc.collect()
    assert all(ref() is None for ref in seen)
    assert all(p.grad is None for p in task.net.parameters())
    assert all(not p_state["direction"].requires_grad for p_state in opt.state.values())


# ---------------------------------------------------------------------- bad batches


def broken(closure, how):
    def evaluate():
        loss, outputs = closure()
        return loss * how if isinstance(how, float) else how(loss, outputs), outputs

    return evaluate


@pytest.mark.parametrize(
    "how",
    [math.nan, math.inf, lambda loss, out: loss + 0.0 * (out - out.detach()).abs().sum().sqrt()],
    ids=["nan", "inf", "gradient"],
)
@pytest.mark.parametrize("where", ["gradient", "curvature"])
def test_a_non_finite_batch_changes_nothing_and_is_counted(how, where):
    task = Task()
    opt = HessianFree(task.net.parameters())
    task.run(opt, range(3))
    weights, state = task.vector(), copy.deepcopy(opt.state_dict()["state"])
    bad = broken(task.closure(), how)
    if where == "gradient":
        opt.step(bad)
    else:
        opt.step(task.closure(), bad)
    assert torch.equal(task.vector(), weights)
    assert opt.stats.nonfinite == 1
    assert opt.stats.steps == 3
    for index, entry in opt.state_dict()["state"].items():
        assert torch.equal(entry["direction"], state[index]["direction"])
        assert entry["damping"] == state[index]["damping"]


def test_trial_points_with_a_loss_that_is_not_a_number_are_not_taken():
    """−log(1 − w²) + …: Newton's step from here leaves the domain, and log of a negative number is NaN."""
    net = Number(0.9, lambda w: -torch.log(1.0 - w * w) - 60.0 * w.sqrt())
    opt = HessianFree(net.parameters(), damping=1e-3)
    for _ in range(5):
        opt.step(net.closure)
        assert 0.0 < float(net.w.detach()) < 1.0


def test_an_exception_in_a_trial_leaves_the_weights_as_they_were():
    task, calls = Task(), []

    def closure():
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return task.closure()()

    before = task.vector()
    opt = HessianFree(task.net.parameters())
    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    assert torch.equal(task.vector(), before)
    assert opt.stats.steps == 0


def test_zero_gradients_and_lr_zero_are_steps_that_change_nothing():
    task = Task()
    before = task.vector()
    opt = HessianFree(task.net.parameters(), lr=0.0)
    task.run(opt, range(2))
    assert torch.equal(task.vector(), before)
    assert (opt.stats.steps, opt.stats.rejected, opt.stats.damping) == (2, 0, 0.1)


def test_frozen_and_unused_parameters_stay():
    task = Task()
    unused = nn.Parameter(torch.ones(4, dtype=torch.float64))
    bias = task.net.layers[0].bias.requires_grad_(False)
    before = bias.clone()
    opt = HessianFree([*task.net.parameters(), unused], damping=0.0, max_cg_iterations=20)
    task.run(opt, range(3))
    assert torch.equal(bias, before)
    assert torch.equal(unused.detach(), torch.ones(4, dtype=torch.float64))
    bias.requires_grad_()
    task.run(opt, range(3, 5))
    assert not torch.equal(bias.detach(), before)


# ---------------------------------------------------------------------- saving, loading, copying


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_resume_is_bit_for_bit(dtype):
    for stop in (0, 1, 3):
        task = Task(dtype)
        opt = HessianFree(task.net.parameters(), damping=0.3)
        if stop == 1:  # also right after a batch that was skipped
            opt.step(broken(task.closure(), math.nan))
        task.run(opt, range(stop))
        other = copy.deepcopy(task)
        resumed = HessianFree(other.net.parameters(), damping=0.3)
        resumed.load_state_dict(saved_and_loaded(opt.state_dict()))
        assert resumed.stats == opt.stats
        assert torch.equal(task.run(opt, range(stop, stop + 4)), other.run(resumed, range(stop, stop + 4)))
        assert resumed.stats == opt.stats


def test_parameters_of_two_dtypes_resume_bit_for_bit():
    a, b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3, dtype=torch.float64))

    def closure_of(a, b):
        def closure():
            outputs = a.double().exp() + b
            return (outputs.square() + outputs.abs().pow(3)).mean(), outputs

        return closure

    opt = HessianFree([a, b])
    opt.step(closure_of(a, b))
    c, d = copy.deepcopy(a), copy.deepcopy(b)
    other = HessianFree([c, d])
    other.load_state_dict(saved_and_loaded(opt.state_dict()))
    for _ in range(3):
        opt.step(closure_of(a, b))
        other.step(closure_of(c, d))
    assert torch.equal(a, c)
    assert torch.equal(b, d)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_a_copy_goes_its_own_way_and_the_same_way(copier):
    task = Task()
    opt = HessianFree(task.net.parameters(), model=task.net)
    task.run(opt, range(2))
    other, twin = copier((task, opt))
    assert torch.equal(task.run(opt, range(2, 4)), other.run(twin, range(2, 4)))
    assert opt.stats == twin.stats


def test_a_scheduler_sets_the_step_size():
    task = Task()
    opt = HessianFree(task.net.parameters(), lr=torch.tensor(1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.0)
    task.run(opt, range(1))
    scheduler.step()
    before = task.vector()
    task.run(opt, range(1, 3))
    assert torch.equal(task.vector(), before)
    opt.param_groups[0]["lr"] = -0.1
    with pytest.raises(ValueError, match=r"lr must be a finite number of at least 0, got -0\.1"):
        opt.step(task.closure())


def test_a_state_that_does_not_fit_is_refused_whole():
    task = Task()
    opt = HessianFree(task.net.parameters())
    adam = torch.optim.Adam(task.net.parameters())
    sum(p.sum() for p in task.net.parameters()).backward()
    adam.step()
    with pytest.raises(ValueError, match="another method"):
        opt.load_state_dict(adam.state_dict())
    with pytest.raises(ValueError, match="of 4 parameters, and this optimizer has 1"):
        HessianFree([nn.Parameter(torch.ones(2))]).load_state_dict(opt.state_dict())
    assert not opt.state


# ---------------------------------------------------------------------- learning


def test_a_recurrent_net_learns_to_remember():
    """The first of eight inputs decides the class; a tanh RNN of ten units with structural damping."""
    rnn, readout = nn.RNN(2, 10, batch_first=True), nn.Linear(10, 2)
    x = torch.randn(100, 8, 2)
    y = (x[:, 0, 0] > 0).long()

    def closure():
        hidden, _ = rnn(x)
        outputs = readout(hidden[:, -1])
        return cross_entropy(outputs, y), outputs, hidden

    params = [*rnn.parameters(), *readout.parameters()]
    opt = HessianFree(params, damping=0.1, structural_damping=1 / 30, max_cg_iterations=50)
    losses = [float(opt.step(closure)) for _ in range(25)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 0.6
    assert losses[-1] < 0.15


# ---------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lr": -1.0}, "lr must be a finite number of at least 0, got -1.0"),
        ({"lr": torch.ones(2)}, "Tensor lr must be 1-element"),
        ({"damping": -1.0}, "damping must be a finite number of at least 0, got -1.0"),
        ({"damping": "1"}, "damping must be a number"),
        ({"structural_damping": math.nan}, "structural_damping must be a finite number"),
        ({"damping_factor": 1.5}, "damping_factor must be a finite number from 0 to 1, got 1.5"),
        ({"damping_factor": 0.0}, "damping_factor must be more than 0"),
        ({"warm_start": 2.0}, "warm_start must be a finite number from 0 to 1, got 2.0"),
        ({"max_cg_iterations": 0}, "max_cg_iterations must be at least 1, got 0"),
        ({"min_cg_iterations": 300}, "min_cg_iterations must be at most max_cg_iterations=250, got 300"),
        ({"preconditioner": "jacobi"}, "preconditioner must be one of"),
        ({"batch_dim": 0.5}, "batch_dim must be a whole number"),
        ({"model": 3}, "model must be the module"),
        ({"model": nn.Linear(2, 2)}, "parameter 0 of the optimizer is not one of the model"),
    ],
)
def test_bad_options_are_told_by_name(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        HessianFree(nn.Linear(2, 2).parameters(), **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match=r"HessianFree needs torch\.float32 or torch\.float64"):
        HessianFree([nn.Parameter(torch.ones(2, dtype=dtype))])


def test_several_devices_are_refused():
    with pytest.raises(ValueError, match="several devices"):
        HessianFree([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))])


def backward_called(out):
    out.sum().backward()
    return out.sum(), out


@pytest.mark.parametrize(
    "closure, options, message",
    [
        (None, {}, "HessianFree needs step\\(closure\\)"),
        (lambda out: out.sum(), {}, "must return \\(loss, outputs\\)"),
        (lambda out: (out, out), {}, "loss must be a real tensor with one element, got a tensor of shape \\(4, 2\\)"),
        (lambda out: (out.sum(), 3), {}, "outputs must be a tensor"),
        (lambda out: (out.sum(), []), {}, "outputs must be a tensor"),
        (lambda out: (out.sum().detach(), out), {}, "has no graph"),
        (lambda out: (out.sum(), out * 2), {}, "does not depend on the outputs"),
        (lambda out: (out.square().sum(), out), {"structural_damping": 1.0}, "needs the hidden states"),
        (lambda out: (out.square().sum(), out), {"batch_dim": 2}, "batch_dim=2 is not a dimension"),
        (backward_called, {}, "called backward"),
    ],
)
def test_bad_closures_are_told_by_name(closure, options, message):
    net, x = nn.Linear(3, 2), torch.randn(4, 3)
    opt = HessianFree(net.parameters(), **options)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        opt.step(closure and (lambda: closure(net(x).tanh())))


def test_a_closure_that_does_not_call_the_model_is_told():
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    opt = HessianFree(net.parameters(), model=net)
    x = torch.randn(4, 3)

    def closure():
        outputs = other(x) if not torch.is_grad_enabled() else net(x)
        return outputs.square().mean(), outputs

    with pytest.raises(ValueError, match="do not depend on the model"):
        opt.step(closure)


def test_sparse_gradients_are_told():
    embedding = nn.Embedding(5, 2, sparse=True)

    def closure():
        outputs = embedding(torch.tensor([1, 2]))
        return outputs.square().mean(), outputs

    with pytest.raises(RuntimeError, match="sparse=False"):
        HessianFree(embedding.parameters()).step(closure)
