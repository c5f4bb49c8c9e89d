"""Pairs from the monitored batch, in the scale of lr·H0 (D34), against dense matrices in float64."""

import copy

import pytest
import torch
from torch import nn

import adaqn
from adaqn import AdaQN, MonitoredGradient, PairOptions
from oracles import dense_bfgs

L = 4


class Recorded:
    """A run of AdaQN on a small network, beside all that its pairs should be made of."""

    def __init__(self, scale, lrs=(0.05,), damping=0.0, seed=0, **options):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.x = torch.randn(60, 3, dtype=torch.float64)
        self.target = torch.sin(2.0 * self.x)[:, :2]
        params = list(self.model.parameters())
        self.groups = [params] if len(lrs) == 1 else [params[:2], params[2:]]
        self.pairs = PairOptions(curvature="monitored", scale=scale, test="positive", damping=damping, memory_size=3)
        self.opt = AdaQN(
            [{"params": group, "lr": lr} for group, lr in zip(self.groups, lrs, strict=True)],
            monitor=adaqn.Monitor(self.model, nn.MSELoss(), (self.x, self.target)), scaling="adam", momentum=0.0,
            cycle_length=L, reject="none", pairs=self.pairs, warm_up=0, **options,
        )  # fmt: skip
        self.anchor, self.total, self.S, self.Y, self.lr_at = None, 0.0, [], [], []
        self.step_count = 0

    def vector(self, what):
        return torch.cat([what(p).reshape(-1) for group in self.groups for p in group])

    @property
    def w(self):
        return self.vector(lambda p: p.detach())

    @property
    def lambdas(self):
        return torch.cat([
            torch.full((sum(p.numel() for p in group["params"]),), float(group["lr"]), dtype=torch.float64)
            for group in self.opt.param_groups
        ])  # fmt: skip

    def monitored_gradient(self, w):
        model = copy.deepcopy(self.model)
        torch.nn.utils.vector_to_parameters(w, model.parameters())
        loss = nn.functional.mse_loss(model(self.x), self.target)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])

    def gradient(self):
        rows = slice(6 * self.step_count % 60, 6 * self.step_count % 60 + 6)
        self.model.zero_grad()
        nn.functional.mse_loss(self.model(self.x[rows]), self.target[rows]).backward()
        return self.vector(lambda p: p.grad)

    def h0(self):
        n = len(self.w)
        out = torch.empty(n, dtype=torch.float64)
        return torch.diag(self.opt.scaling.apply(torch.ones(n, dtype=torch.float64), out).clone())

    def step(self):
        """(The step that was made, and H0 as it was applied, the gradient)."""
        g, before = self.gradient(), self.w
        self.opt.step()
        self.step_count += 1
        made = self.w - before
        self.total = self.total + self.w
        if self.step_count % L == 0:
            average, self.total = self.total / L, 0.0
            if self.anchor is not None:
                self.S.append(average - self.anchor)
                self.Y.append(self.monitored_gradient(average) - self.monitored_gradient(self.anchor))
                self.lr_at.append(self.lambdas)
            self.anchor = average
        return made, g

    def damped(self, s, y, h0):
        inverse = torch.linalg.inv(h0)
        share, sy, along = self.pairs.damping, s @ y, s @ inverse @ s
        theta = (1 - share) * along / (along - sy) if sy < share * along else 1.0
        return theta * y + (1 - theta) * inverse @ s


@pytest.mark.parametrize("lrs", [(0.05,), (0.08, 0.02)])
@pytest.mark.parametrize("scale", ["h0", "stored", "current"])
def test_the_step_is_that_of_the_dense_matrix(scale, lrs):
    run = Recorded(scale, lrs)
    stored = []
    for _ in range(5 * L + 2):
        lambdas = run.lambdas
        known = len(run.S)
        made, g = run.step()
        if known and known == len(run.S):  # H0 of this step is still as it was applied
            H0, root = run.h0(), torch.diag(run.lambdas.sqrt())
            kept = [i for i in stored if i < known][-3:]
            S, Y = [run.S[i] for i in kept], [run.Y[i] for i in kept]
            if scale == "h0":
                H = root @ dense_bfgs(S, Y, H0) @ root
            elif scale == "current":
                H = dense_bfgs(S, Y, root @ H0 @ root)
            else:
                at = [run.lr_at[i] for i in kept]
                pairs = [(s / lr.sqrt(), y * lr.sqrt()) for s, y, lr in zip(S, Y, at, strict=True)]
                H = root @ dense_bfgs([s for s, _ in pairs], [y for _, y in pairs], H0) @ root
            torch.testing.assert_close(made, -H @ g, rtol=1e-7, atol=1e-11)
        if len(run.S) > known and run.opt.stats.stored > len(stored):
            stored.append(len(run.S) - 1)
        del lambdas
    assert len(stored) >= 3


@pytest.mark.parametrize("scale", ["stored", "current"])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_step_size_that_changes_in_mid_run(scale, factor):
    """With one group: "stored" keeps the lr of the pair, so that the step grows with lr; "current" follows it."""
    run = Recorded(scale, damping=0.5)
    for _ in range(3 * L):
        run.step()
    assert run.opt.stats.pairs > 0
    twin = copy.deepcopy(run)
    for group in twin.opt.param_groups:
        group["lr"] *= factor
    (plain, _), (changed, _) = run.step(), twin.step()
    if scale == "stored":
        torch.testing.assert_close(changed, factor * plain, rtol=1e-9, atol=1e-12)
    else:
        assert not torch.allclose(changed, factor * plain, rtol=1e-3)


@pytest.mark.parametrize("scale", ["h0", "stored", "current"])
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_group_whose_lr_becomes_zero_stays_where_it_is(scale, kind):
    run = Recorded(scale, (kind(0.05), kind(0.02)), damping=0.5)
    for _ in range(3 * L + 1):
        run.step()
    assert run.opt.stats.pairs > 0
    run.opt.param_groups[0]["lr"] = kind(0.0)
    still = [p.detach().clone() for p in run.groups[0]]
    for _ in range(2 * L):
        run.step()
    for before, p in zip(still, run.groups[0], strict=True):
        assert torch.equal(before, p.detach())
    assert run.w.isfinite().all()


@pytest.mark.parametrize("scale", ["stored", "current"])
def test_a_schedule_to_zero_stays_finite(scale):
    run = Recorded(scale, damping=0.5)
    steps = 12 * L
    for step in range(steps):
        run.opt.param_groups[0]["lr"] = 0.05 * (1 - step / (steps - 1))
        made, _ = run.step()
        assert made.isfinite().all()
    assert made.abs().max() == 0.0


def test_a_tensor_of_a_step_size_is_that_number():
    runs = [Recorded("stored", (lr,), damping=0.5) for lr in (0.05, torch.tensor(0.05, dtype=torch.float64))]
    for _ in range(4 * L):
        (a, _), (b, _) = (run.step() for run in runs)
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


# The gradient of the monitored loss


def rnn_problem():
    torch.manual_seed(1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 5, 2, batch_first=True, dropout=0.4)
            self.norm = nn.BatchNorm1d(5)
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.norm(self.rnn(x)[0][:, -1]))

    return Net(), torch.randn(24, 6, 3), torch.randn(24, 2)


@pytest.mark.parametrize("examples", [None, 7])
@pytest.mark.parametrize("chunk", [None, 5, 100])
def test_the_gradient_is_the_mean_of_the_first_examples_and_nothing_is_left_behind(examples, chunk):
    model, x, target = rnn_problem()
    model(x).sum().backward()
    before = copy.deepcopy(model)
    grads = [p.grad.clone() for p in model.parameters()]
    random = torch.get_rng_state()
    monitor = adaqn.Monitor(model, nn.MSELoss(), (x, target), chunk=chunk)
    found = [torch.zeros_like(p) for p in model.parameters()]

    def backward(part):
        for total, gradient in zip(found, torch.autograd.grad(part, list(model.parameters())), strict=True):
            total.add_(gradient)

    losses = monitor.differentiate(backward, examples)
    torch.testing.assert_close(losses, monitor())
    assert losses.shape == (24,)
    assert torch.equal(torch.get_rng_state(), random)
    for (_, a), (_, b) in zip(model.state_dict().items(), before.state_dict().items(), strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert model.training
    assert model.rnn.training
    assert model.rnn.dropout == 0.4
    model.eval()
    count = examples or 24
    loss = nn.functional.mse_loss(model(x[:count]), target[:count])
    for total, gradient in zip(found, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(total, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rotating", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_it_trains_with_every_kind_of_weights(rotating, dtype):
    torch.manual_seed(0)
    model = nn.Linear(4, 2, dtype=dtype)
    x = torch.randn(64, 4).to(dtype)
    target = (x[:, :2] * 2.0 - x[:, 2:]).detach()

    def loss_fn(output, target):
        return (output - target).abs().float().square().mean(1)

    batches = [(x[:32], target[:32]), (x[32:], target[32:])]
    monitor = adaqn.RotatingMonitor(model, loss_fn, batches) if rotating else adaqn.Monitor(model, loss_fn, (x, target))
    pairs = PairOptions(curvature=MonitoredGradient(examples=20), scale="stored")
    opt = AdaQN(model.parameters(), lr=0.02, monitor=monitor, pairs=pairs)
    start = monitor().mean()
    for _ in range(60):
        opt.zero_grad()
        loss_fn(model(x), target).mean().backward()
        opt.step()
    assert opt.stats.stored > 3
    assert monitor().mean() < 0.5 * start


def test_maximize_changes_the_sign_of_both():
    runs = []
    for sign in (1.0, -1.0):
        torch.manual_seed(0)
        model = nn.Linear(4, 2).double()
        x, target = torch.randn(64, 4, dtype=torch.float64), torch.randn(64, 2, dtype=torch.float64)

        def loss_fn(output, target, sign=sign):
            return sign * (output - target).square().mean(1)

        opt = AdaQN(model.parameters(), lr=0.02, monitor=adaqn.Monitor(model, loss_fn, (x, target)),
                    maximize=sign < 0, pairs=PairOptions(curvature="monitored", scale="stored"))  # fmt: skip
        for _ in range(23):
            opt.zero_grad()
            loss_fn(model(x), target).mean().backward()
            opt.step()
        assert opt.stats.stored > 1
        runs.append(model.weight.detach().clone())
    torch.testing.assert_close(*runs, rtol=1e-9, atol=1e-12)


def test_without_a_monitor_h0_works_alone_and_says_so():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    opt = AdaQN(model.parameters(), reject="none", pairs=PairOptions(curvature="monitored"))

    def train():
        for _ in range(12):
            opt.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            opt.step()

    with pytest.warns(UserWarning, match="no monitor was given, and pairs are made of its gradients"):
        train()
    assert opt.stats.pairs == 0
    assert opt.stats.cycles == 2


@pytest.mark.parametrize("how", ["no graph", "wrong length"])
def test_a_monitor_that_cannot_be_differentiated_is_one_clear_error_and_nothing_changes(how):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x, target = torch.randn(16, 4), torch.randn(16, 2)
    if how == "no graph":

        def monitor():
            with torch.no_grad():
                return model(x).square().mean(1)

        curvature, said = "monitored", "has no gradient"
    else:
        with pytest.raises(ValueError, match="lengths"):
            adaqn.Monitor(model, nn.MSELoss(), (x, target[:12]), chunk=4)
        monitor = adaqn.Monitor(model, nn.MSELoss(), (x, target), chunk=4)
        monitor.batch = (x, target[:12])
        curvature, said = MonitoredGradient(examples=4), "lengths"
    opt = AdaQN(model.parameters(), lr=0.01, monitor=monitor, pairs=PairOptions(curvature=curvature))
    for _ in range(4 if how == "no graph" else 0):  # a Monitor is tried before the first step
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
    opt.zero_grad()
    model(x).square().mean().backward()
    with pytest.raises(ValueError, match=said):
        opt.step()
    assert opt.stats.cycles == 0
    opt.monitor = adaqn.Monitor(model, nn.MSELoss(), (x, target))
    for _ in range(10):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
    assert opt.stats.cycles > 0


def test_saved_in_mid_cycle_it_goes_on_with_the_same_numbers():
    run = Recorded("stored", damping=0.5)
    for _ in range(3 * L + 2):
        run.step()
    twin = Recorded("stored", damping=0.5)
    twin.model.load_state_dict(run.model.state_dict())
    twin.opt.load_state_dict(copy.deepcopy(run.opt.state_dict()))
    twin.step_count = run.step_count
    for _ in range(3 * L):
        run.step()
        twin.step()
    assert torch.equal(run.w, twin.w)
