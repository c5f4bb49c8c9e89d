"""K-FAC as an optimizer: what it sees, what it leaves alone, and that it can be stopped, copied and resumed."""

import copy
import gc
import io
import pickle
import warnings
import weakref

import pytest
import torch
from inside_baselines import forward_hooks, recorder, seen_by_layer
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from adaqn import Monitor
from adaqn.baselines.kfac import KFAC
from adaqn.experiments.problems.linear_recurrent import LinearLSTM, LinearRNN, from_torch
from adaqn.experiments.problems.networks import Recurrent

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


class LanguageModel(nn.Module):
    def __init__(self, symbols=7, hidden=8, cells=LinearRNN):
        super().__init__()
        self.embedding = nn.Embedding(symbols, hidden)
        self.cells = cells(hidden, hidden)
        self.output = nn.Linear(hidden, symbols)

    def forward(self, x):
        return self.output(self.cells(self.embedding(x))[0])


def text_batch(k, symbols=7):
    """A text with a rule: each symbol follows from the two before it, a little noise apart."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randint(symbols, (16, 9), generator=generator)
    for t in range(2, 9):
        noise = (torch.rand(16, generator=generator) < 0.1) * torch.randint(symbols, (16,), generator=generator)
        x[:, t] = (x[:, t - 1] + 2 * x[:, t - 2] + noise) % symbols
    return x[:, :-1], x[:, 1:]


def text_loss(model, k):
    x, y = text_batch(k)
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


def train(opt, model, steps):
    """One ordinary step per number; returns the losses."""
    losses = []
    for k in steps:
        opt.zero_grad()
        output = model(text_batch(k)[0]).flatten(0, 1)
        if opt.options.fisher == "sampled":
            generator = torch.Generator().manual_seed(k)
            drawn = torch.multinomial(output.detach().softmax(1), 1, generator=generator)[:, 0]
            with opt.sampling():
                cross_entropy(output, drawn).backward(retain_graph=True)
        loss = cross_entropy(output, text_batch(k)[1].flatten())
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    return losses


def vector(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def snapshot(opt):
    return copy.deepcopy(opt.state_dict()["state"])


def same(a, b, but=()):
    """Are two states equal, some counters apart?"""
    assert a.keys() == b.keys()
    for index in a:
        names = a[index].keys() - set(but)
        assert names == b[index].keys() - set(but)
        for name in names:
            x, y = a[index][name], b[index][name]
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y, (index, name)
    return True


# ---------------------------------------------------------------------- it optimizes


def test_it_needs_far_fewer_steps_than_sgd_on_an_ill_conditioned_regression():
    scales = torch.logspace(0, -2, 10, dtype=torch.float64)  # the curvatures range over four orders of magnitude
    x = torch.randn(200, 10, dtype=torch.float64) * scales
    y = x @ torch.randn(10, 2, dtype=torch.float64) / scales.min() * 0.01

    def squares(output, target):
        return (output - target).square().sum(1).mean()

    def final_loss(make, steps):
        torch.manual_seed(1)
        model = nn.Linear(10, 2, dtype=torch.float64)
        opt = make(model)
        for _ in range(steps):
            opt.zero_grad()
            output = model(x)
            if isinstance(opt, KFAC):
                drawn = output.detach() + 0.5**0.5 * torch.randn_like(output)  # the variance that squares stand for
                with opt.sampling():
                    squares(output, drawn).backward(retain_graph=True)
            squares(output, y).backward()
            opt.step()
        return float(squares(model(x), y).detach())

    exact = {"fisher": "sampled", "momentum": 0.0, "kl_clip": None, "damping": 1e-10}
    kfac = final_loss(lambda m: KFAC(m, lr=0.5, **exact), 15)
    sgd = min(final_loss(lambda m, lr=lr: torch.optim.SGD(m.parameters(), lr), 150) for lr in (0.1, 0.2, 0.5, 1.0))
    assert kfac < 0.01 * sgd


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("fisher", ["empirical", "sampled"])
def test_a_recurrent_language_model_learns(fisher, sharing):
    model = LanguageModel()
    opt = KFAC(model, lr=0.1, fisher=fisher, sharing=sharing, terms_per_example=8, kl_clip=1e-2)
    losses = train(opt, model, range(120))
    assert sum(losses[-10:]) / 10 < 0.92 * losses[0]  # below 0.85 with torch 2.13, 0.89 with 2.6
    assert opt.stats.steps == 120
    assert opt.stats.nonfinite == 0


def test_an_lstm_learns_too():
    model = LanguageModel(cells=LinearLSTM)
    losses = train(KFAC(model, kl_clip=1e-2, terms_per_example=8), model, range(120))
    assert sum(losses[-10:]) / 10 < 0.9 * losses[0]


def test_an_embedding_is_a_linear_layer_on_one_hot_inputs():
    class OneHot(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.table = nn.Linear(7, 5, bias=False)
            self.table.weight.data = table.T.clone()

        def forward(self, x):
            return self.table(one_hot(x, 7).double())

    embedding = nn.Embedding(7, 5, dtype=torch.float64)
    dense = OneHot(embedding.weight.detach())
    target = torch.randn(4, 6, 5, dtype=torch.float64)
    for model in (embedding, dense):
        opt = KFAC(model, inverse_every=2)
        for k in range(8):
            opt.zero_grad()
            x = torch.randint(7, (4, 6), generator=torch.Generator().manual_seed(k))
            mse_loss(model(x), target).backward()
            opt.step()
    torch.testing.assert_close(embedding.weight.T, dense.table.weight, rtol=1e-10, atol=1e-12)


def test_steps_on_a_sum_are_those_on_the_mean_with_the_damping_of_the_sum():
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    models = [nn.Linear(3, 2, dtype=torch.float64)]
    models.append(copy.deepcopy(models[0]))
    options = ({"damping": 0.1}, {"damping": 0.6, "loss_reduction": "sum"})
    for model, option in zip(models, options, strict=True):
        opt = KFAC(model, kl_clip=None, **option)
        for _ in range(5):
            opt.zero_grad()
            losses = (model(x) - y).square().sum(1)
            (losses.mean() if "loss_reduction" not in option else losses.sum()).backward()
            opt.step()
    torch.testing.assert_close(vector(models[0]), vector(models[1]), rtol=1e-10, atol=1e-12)


def test_no_step_moves_the_model_further_than_the_bound():
    """With momentum 0, lr² ΔᵀFΔ is at most kl_clip."""
    model = LanguageModel().double()
    opt = KFAC(model, lr=1.0, momentum=0.0, kl_clip=1e-4)
    for k in range(5):
        before = {block.name: [p.detach().clone() for p in block.params] for block in opt.blocks}
        train(opt, model, [k])
        total = 0.0
        for block in opt.blocks:
            parts = [p.detach() - old for p, old in zip(block.params, before[block.name], strict=True)]
            move = parts[0].T if block.form.one_hot else torch.cat([parts[0], parts[1][:, None]], dim=1)
            A, G = opt.state[block.weight]["A"], opt.state[block.weight]["G"]
            total += float((move * (G @ move @ (A.diag() if A.dim() == 1 else A))).sum())
        assert 0.0 < total <= 1e-4
        assert opt.stats.kl_scale < 1.0


def test_maximize_mirrors_minimize():
    down, up = (LanguageModel().double() for _ in range(2))
    up.load_state_dict(down.state_dict())
    a, b = KFAC(down), KFAC(up, maximize=True)
    for k in range(6):
        for opt, model, sign in ((a, down, 1.0), (b, up, -1.0)):
            opt.zero_grad()
            (sign * text_loss(model, k)).backward()
            opt.step()
    assert torch.equal(vector(down), vector(up))


def test_each_layer_is_a_group_with_its_own_step_size():
    model = LanguageModel()
    opt = KFAC(model, lr=torch.tensor([0.1]))
    groups = {group["name"]: group for group in opt.param_groups}
    assert list(groups) == ["embedding", "cells.from_input.0", "cells.from_hidden.0", "output"]
    groups["output"]["lr"] = 0.0
    before = model.output.weight.detach().clone(), model.embedding.weight.detach().clone()
    train(opt, model, range(3))
    assert torch.equal(model.output.weight, before[0])
    assert not torch.equal(model.embedding.weight, before[1])


def test_weight_decay_shrinks_what_has_no_slope():
    model = nn.Linear(3, 2, dtype=torch.float64)
    w = model.weight.detach().clone()
    opt = KFAC(model, lr=0.1, weight_decay=0.5)
    (model(torch.randn(4, 3, dtype=torch.float64)) * 0.0).sum().backward()
    opt.step()
    torch.testing.assert_close(model.weight.detach(), 0.95 * w)


def test_other_parameters_by_sgd_are_those_of_torch():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.norm = nn.LayerNorm(3)
            self.double()

        def forward(self, x):
            return self.norm(self.first(x))

    model = Scaled()
    opt = KFAC(model, lr=0.1, others="sgd", weight_decay=0.01)
    twin = copy.deepcopy(model.norm)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for k in range(6):
        opt.zero_grad()
        mse_loss(
            model(torch.randn(4, 3, dtype=torch.float64)), torch.full((4, 3), float(k), dtype=torch.float64)
        ).backward()
        for p, q in zip(model.norm.parameters(), twin.parameters(), strict=True):
            q.grad = p.grad.clone()
            q.data.mul_(1.0 - 0.1 * 0.01)  # the decay is decoupled here
        opt.step()
        sgd.step()
    torch.testing.assert_close(vector(model.norm), vector(twin), rtol=1e-12, atol=1e-12)
    assert opt.param_groups[-1]["name"] == "others"


# ---------------------------------------------------------------------- what the hooks see


def test_evaluations_between_forward_and_step_change_nothing():
    plain, watched = (LanguageModel().double() for _ in range(2))
    watched.load_state_dict(plain.state_dict())
    a, b = KFAC(plain), KFAC(watched)
    x, y = text_batch(99)
    monitor = Monitor(watched, lambda out, t: cross_entropy(out.flatten(0, 1), t.flatten()), (x, y))
    for k in range(5):
        train(a, plain, [k])
        b.zero_grad()
        loss = text_loss(watched, k)
        monitor()
        with torch.no_grad():
            watched(x)
        watched.eval()
        text_loss(watched, 50).backward()
        watched.train()
        for p in watched.parameters():
            p.grad = None
        loss.backward()
        watched(x)  # a forward pass in training mode that nobody differentiates
        b.step()
    assert torch.equal(vector(plain), vector(watched))
    assert same(snapshot(a), snapshot(b))


def test_zero_grad_forgets_an_abandoned_pass():
    model = LanguageModel()
    opt = KFAC(model)
    text_loss(model, 0).backward()
    opt.zero_grad()
    assert not any(seen_by_layer(opt).values())


def test_sampling_feeds_the_factors_and_leaves_the_gradients_alone():
    model = LanguageModel()
    opt = KFAC(model, fisher="sampled")
    text_loss(model, 0).backward()
    before = [p.grad.clone() for p in model.parameters()]
    assert not any(seen_by_layer(opt).values())
    with opt.sampling():
        text_loss(model, 1).backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    opt.zero_grad()
    text_loss(model, 0).backward()
    opt.step()
    assert opt.stats.steps == 1
    before = vector(model)
    text_loss(model, 2).backward()
    opt.step()  # factors of an earlier step will do
    assert opt.stats.steps == 2
    assert not torch.equal(vector(model), before)


def test_an_error_inside_sampling_gives_the_gradients_back():
    model = LanguageModel()
    opt = KFAC(model, fisher="sampled")
    text_loss(model, 0).backward()
    kept = model.output.weight.grad
    with pytest.raises(ZeroDivisionError), opt.sampling():
        raise ZeroDivisionError
    assert model.output.weight.grad is kept
    with opt.sampling():
        pass


def test_memory_stays_flat_and_an_undifferentiated_graph_is_freed():
    model = LanguageModel()
    opt = KFAC(model)

    def alive():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    counts = []
    for k in range(60):
        train(opt, model, [k])
        model(text_batch(k)[0])
        if k in (30, 59):
            counts.append(alive())
    assert counts[1] <= counts[0]
    held = weakref.ref(text_loss(model, 0))
    assert held() is None
    assert all(
        not t.requires_grad for entry in opt.state.values() for t in entry.values() if isinstance(t, torch.Tensor)
    )


def test_removed_hooks_leave_the_model_as_it_was_and_the_last_factors_at_work():
    model = LanguageModel()
    opt = KFAC(model)
    train(opt, model, range(3))
    opt.remove_hooks()
    opt.remove_hooks()
    assert not forward_hooks(model)
    factor = opt.state[model.output.weight]["A"].clone()
    train(opt, model, range(3, 5))
    assert opt.stats.steps == 5
    assert torch.equal(opt.state[model.output.weight]["A"], factor)


def test_an_optimizer_that_is_gone_is_not_held_by_its_model():
    model = LanguageModel()
    opt = KFAC(model)
    train(opt, model, range(2))
    gone = weakref.ref(recorder(opt))
    del opt
    gc.collect()
    assert gone() is None
    text_loss(model, 0).backward()


def test_factors_are_updated_as_often_as_asked():
    model = LanguageModel()
    opt = KFAC(model, factor_every=3, inverse_every=4)
    seen, inverted = [], []
    for k in range(9):
        train(opt, model, [k])
        seen.append(opt.state[model.output.weight]["estimates"])
        inverted.append(opt.stats.inversions)
    assert seen == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert inverted == [1, 2, 3, 3, 4, 4, 4, 4, 5]


def test_a_layer_called_by_keyword_in_place_activations_and_unused_layers():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.unused = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.second(torch.relu_(self.first(input=x)))

    model = Odd().double()
    opt = KFAC(model)
    x = torch.randn(5, 3, dtype=torch.float64)
    model(x).square().sum(1).mean().backward()
    bias_gradient = model.first.bias.grad.clone()
    opt.step()
    assert opt.stats.steps == 1
    assert "A" not in opt.state.get(model.unused.weight, {})
    factors = opt.state[model.first.weight]
    assert factors["A"][-1, -1] == 1.0
    assert float(factors["G"].trace()) >= float(bias_gradient.square().sum())  # Jensen: of the gradient before relu


# ---------------------------------------------------------------------- bad batches


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("fisher", ["empirical", "sampled"])
def test_a_bad_batch_leaves_weights_and_factors_as_they_were(bad, fisher):
    model, twin = (LanguageModel() for _ in range(2))
    twin.load_state_dict(model.state_dict())
    opt, other = (KFAC(m, fisher=fisher) for m in (model, twin))
    for k in range(8):
        if k in (0, 4):
            before, state = vector(model), snapshot(opt)
            opt.zero_grad()
            loss = text_loss(model, k) * bad
            if fisher == "sampled":
                with opt.sampling():
                    loss.backward(retain_graph=True)
            loss.backward()
            opt.step()
            assert torch.equal(vector(model), before)
            if k:
                assert same(snapshot(opt), state, but=["nonfinite"])
        train(opt, model, [k])
        train(other, twin, [k])
    assert torch.equal(vector(model), vector(twin))
    assert opt.stats.nonfinite == 2
    assert opt.stats.steps == 8


def test_a_bad_loss_of_a_closure_is_skipped_and_returned():
    model = LanguageModel()
    opt = KFAC(model)

    def closure(factor=1.0):
        opt.zero_grad()
        loss = text_loss(model, 0)
        loss.backward()
        return loss * factor

    assert float(opt.step(closure).detach()) > 0
    before = vector(model)
    assert opt.step(lambda: closure(float("nan"))).isnan()
    assert torch.equal(vector(model), before)
    assert (opt.stats.steps, opt.stats.nonfinite) == (1, 1)


def test_a_direction_that_overflows_is_not_taken():
    model = nn.Linear(2, 2)
    opt = KFAC(model, damping=1e-30, momentum=0.0)
    model(torch.randn(4, 2)).square().mean().backward()
    opt.step()
    before = vector(model)
    for p in model.parameters():
        p.grad = torch.full_like(p, 3e38)
    opt.step()
    assert torch.equal(vector(model), before)
    assert opt.stats.nonfinite == 1


def test_no_gradients_are_no_step_and_missing_ones_leave_their_parameters():
    model = LanguageModel()
    opt = KFAC(model)
    opt.step()
    assert opt.stats.steps == 0
    assert not opt.state_dict()["state"]
    train(opt, model, range(2))
    text_loss(model, 2).backward()
    model.output.bias.grad = model.embedding.weight.grad = None
    bias, table, weight = (p.detach().clone() for p in (model.output.bias, model.embedding.weight, model.output.weight))
    opt.step()
    assert torch.equal(model.output.bias, bias)
    assert torch.equal(model.embedding.weight, table)
    assert not torch.equal(model.output.weight, weight)


def test_zero_gradients_do_no_harm():
    model = nn.Linear(3, 2)
    opt = KFAC(model)
    before = vector(model)
    for _ in range(5):
        opt.zero_grad()
        (model(torch.zeros(4, 3)) * 0.0).sum().backward()
        opt.step()
    assert torch.equal(vector(model), before)


# ---------------------------------------------------------------------- saving and copying


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@DTYPES
@pytest.mark.parametrize("fisher", ["empirical", "sampled"])
def test_resume_is_bit_for_bit_at_every_step(dtype, fisher):
    options = {"fisher": fisher, "factor_every": 2, "inverse_every": 3, "weight_decay": 1e-3, "max_dimension": 8}
    model, saved, losses, path = LanguageModel().to(dtype), [], [], []
    opt = KFAC(model, **options)
    for k in range(13):
        if k < 7:  # factors every second step, inverses every third: from the sixth on all comes again
            saved.append((k, *map(saved_and_loaded, (model.state_dict(), opt.state_dict())), opt.stats, snapshot(opt)))
        losses += train(opt, model, range(k, k + 1))
        path.append(vector(model).clone())
    for k, weights, state, stats, kept in saved:
        resumed = LanguageModel().to(dtype)
        resumed.load_state_dict(weights)
        other = KFAC(resumed, **options)
        other.load_state_dict(state)
        assert other.stats == stats
        assert same(kept, snapshot(other))
        assert train(other, resumed, range(k, k + 7)) == losses[k : k + 7]
        assert torch.equal(vector(resumed), path[k + 6])
    assert other.stats == opt.stats  # both are at the end


def test_the_tensors_of_a_state_dict_do_not_change_when_training_goes_on():
    model = LanguageModel()
    opt = KFAC(model)
    train(opt, model, range(3))
    taken = [value for entry in opt.state_dict()["state"].values() for value in entry.values()]
    tensors = [value for value in taken if isinstance(value, torch.Tensor)]
    kept = copy.deepcopy(tensors)
    train(opt, model, range(3, 6))
    assert all(map(torch.equal, tensors, kept))


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_a_copy_goes_its_own_way_and_the_same_way(copier):
    model = LanguageModel()
    opt = KFAC(model)
    train(opt, model, range(3))
    other_model, other = copier((model, opt))
    for m, o in ((model, opt), (other_model, other)):
        train(o, m, range(3, 8))
    assert torch.equal(vector(model), vector(other_model))
    assert other.stats == opt.stats
    before = vector(model)
    train(other, other_model, range(3))
    assert torch.equal(vector(model), before)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_a_copy_of_the_model_alone_is_not_seen_and_carries_no_optimizer(copier):
    model = LanguageModel()
    opt = KFAC(model)
    train(opt, model, range(3))
    size = len(pickle.dumps(model))
    alone = copier(model)
    text_loss(alone, 0).backward()
    assert not any(seen_by_layer(opt).values())
    assert size < len(pickle.dumps(LanguageModel())) + 2000
    train(KFAC(alone), alone, range(2))


def test_a_state_that_does_not_fit_is_refused_whole():
    model = LanguageModel()
    opt = KFAC(model)
    train(opt, model, range(2))
    other = KFAC(model, max_dimension=4)
    with pytest.raises(ValueError, match=r"'G' of parameter 0 has shape \(8, 8\).*max_dimension"):
        other.load_state_dict(opt.state_dict())
    assert other.stats.steps == 0


# ---------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    "option, message",
    [
        ({"lr": -1.0}, "lr must be a finite number of at least 0, got -1.0"),
        ({"lr": "fast"}, "lr must be a number"),
        ({"lr": torch.ones(2)}, r"one of shape \(2,\)"),
        ({"damping": 0.0}, "damping must be greater than 0"),
        ({"damping": float("nan")}, "damping must be a finite number"),
        ({"momentum": 1.0}, "momentum must be less than 1"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"fisher": "true"}, r"fisher must be one of \['empirical', 'sampled'\], got 'true'"),
        ({"sharing": "sum"}, "sharing must be one of"),
        ({"loss_reduction": "none"}, "loss_reduction must be one of"),
        ({"others": "adam"}, "others must be one of"),
        ({"factor_decay": 1.0}, "factor_decay must be at least 0 and less than 1"),
        ({"factor_every": 0}, "factor_every must be at least 1"),
        ({"inverse_every": 2.5}, "inverse_every must be a whole number"),
        ({"terms_per_example": 0}, "terms_per_example must be at least 1"),
        ({"max_dimension": 0}, "max_dimension must be at least 1"),
        ({"kl_clip": 0.0}, "use None for no bound"),
    ],
)
def test_wrong_options_are_named(option, message):
    with pytest.raises((ValueError, TypeError), match=message):
        KFAC(nn.Linear(2, 2), **option)


def tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def half_frozen():
    model = nn.Linear(3, 3)
    model.bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: nn.Sequential(nn.RNN(2, 2)), "'0.weight_ih_l0'.*LinearRNN"),
        (lambda: nn.LayerNorm(3), "in no nn.Linear or nn.Embedding: use others='sgd'"),
        (tied, "'0' and '1' share a parameter"),
        (half_frozen, "one is frozen"),
        (lambda: nn.Linear(3, 3).requires_grad_(False), "unfreeze"),
        (lambda: nn.Sequential(), "unfreeze"),
        (lambda: nn.Linear(3, 3, dtype=torch.complex64), "torch.complex64"),
        (lambda: nn.Linear(3, 3, dtype=torch.bfloat16), "torch.bfloat16"),
        (lambda: nn.Embedding(3, 3, sparse=True), "sparse=True"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta")), r"several devices \(cpu, meta\)"),
        (lambda: nn.Linear(3, 3).parameters(), "needs the model itself"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        KFAC(make())


def test_lazy_layers_must_know_their_shape():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of torch call them a new feature
        model = nn.LazyLinear(3)
    with pytest.raises(ValueError, match="run one forward pass"):
        KFAC(model)


def test_a_layer_that_was_never_seen_is_an_error_that_says_what_to_do():
    model = nn.Linear(3, 2)
    output = model(torch.randn(4, 3))
    opt = KFAC(model)
    output.sum().backward()
    with pytest.raises(RuntimeError, match="'model' has a gradient, but no call of it was seen: make the optimizer"):
        opt.step()
    sampled = KFAC(model, fisher="sampled")
    model(torch.randn(4, 3)).sum().backward()
    with pytest.raises(RuntimeError, match=r"inside sampling\(\) first"):
        sampled.step()
    assert not sampled.state_dict()["state"]


def test_sampling_is_for_the_sampled_fisher_and_not_nested():
    with pytest.raises(RuntimeError, match="fisher='sampled'"), KFAC(nn.Linear(2, 2)).sampling():
        pass
    opt = KFAC(nn.Linear(2, 2), fisher="sampled")
    with opt.sampling(), pytest.raises(RuntimeError, match="twice"), opt.sampling():
        pass


def test_groups_cannot_be_added():
    with pytest.raises(RuntimeError, match="layers of its model"):
        KFAC(nn.Linear(2, 2)).add_param_group({"params": [nn.Parameter(torch.ones(2))]})


@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru"])
def test_the_networks_of_the_tasks_train_with_their_recurrent_layers_replaced(cell):
    model = Recurrent(cell, 2, 6, 7, vocabulary=7)
    with pytest.raises(ValueError, match="LinearRNN"):
        KFAC(model)
    model.cells = from_torch(model.cells)
    opt = KFAC(model, terms_per_example=8)
    hidden = None
    for k in range(3):
        opt.zero_grad()
        x, y = text_batch(k)
        output, hidden = model(x, hidden)
        hidden = tuple(h.detach() for h in hidden) if cell == "lstm" else hidden.detach()
        cross_entropy(output.flatten(0, 1), y.flatten()).backward()
        opt.step()
    assert (opt.stats.steps, opt.stats.layers) == (3, 6)


def test_sparse_gradients_of_other_parameters_are_an_error():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(5, 3, sparse=True)
            self.output = nn.Linear(3, 2)

        def forward(self, x):
            return self.output(self.bag(x))

    model = Bag()
    opt = KFAC(model, others="sgd")
    model(torch.randint(5, (4, 2))).sum().backward()
    with pytest.raises(RuntimeError, match="build the layer with sparse=False"):
        opt.step()


def test_schedulers_move_the_step_size():
    model = LanguageModel()
    opt = KFAC(model, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    train(opt, model, range(1))
    scheduler.step()
    assert {group["lr"] for group in opt.param_groups} == {0.05}
