"""K-FAC's factors against explicit matrices in float64: definitions, per-example gradients, curvlinops."""

from itertools import pairwise

import pytest
import torch
from inside_baselines import factors_of_curvlinops, seen_by_layer
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from adaqn.baselines.kfac import KFAC
from adaqn.baselines.kfac_factors import (
    LayerForm,
    PassSums,
    clip_scale,
    damped_inverse,
    damped_inverses,
    pi_correction,
    precondition,
    running_average,
)
from adaqn.experiments.problems.linear_recurrent import LinearRNN
from oracles import random_spd

SHARING = pytest.mark.parametrize("sharing", ["expand", "reduce"])


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def with_ones(a):
    return torch.cat([a, torch.ones_like(a[..., :1])], dim=-1)


def definition(a, g, sharing, terms):
    """A and G of the definition from a (N, R, p) and g (N, R, q), with loops instead of products."""
    N, R = a.shape[:2]
    A, G = 0.0, 0.0
    for n in range(N):
        if sharing == "expand":
            for r in range(R):
                A = A + torch.outer(a[n, r], a[n, r]) / (N * R)
                G = G + terms * torch.outer(g[n, r], g[n, r])
        else:
            mean, total = sum(a[n]) / R, sum(g[n])
            A = A + torch.outer(mean, mean) / N
            G = G + terms * torch.outer(total, total)
    return A, G


def mlp(*widths):
    layers = []
    for i, (p, q) in enumerate(pairwise(widths)):
        layers += [nn.Linear(p, q, dtype=torch.float64)] + [nn.Tanh()] * (i < len(widths) - 2)
    return nn.Sequential(*layers)


# ---------------------------------------------------------------------- a model's factors


def test_mlp_factors_are_the_moments_of_activations_and_per_example_gradients():
    model, x, y = mlp(3, 5, 4), torch.randn(6, 3, dtype=torch.float64), torch.randint(4, (6,))
    opt = KFAC(model)
    cross_entropy(model(x), y).backward()
    factors = seen_by_layer(opt)
    hidden = torch.tanh(model[0](x)).detach()
    bias_gradients = {"0": [], "2": []}  # the gradient in a bias is that in the layer's outputs
    for i in range(6):
        grads = torch.autograd.grad(cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        bias_gradients["0"].append(grads[1])
        bias_gradients["2"].append(grads[3])
    for name, a in (("0", x), ("2", hidden)):
        rows, g = with_ones(a), torch.stack(bias_gradients[name])
        close(factors[name][0], rows.T @ rows / 6)
        close(factors[name][1], g.T @ g / 6)


def test_for_one_layer_and_one_example_the_kronecker_product_is_the_empirical_fisher():
    model, x, y = nn.Linear(3, 4, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64), torch.tensor([2])
    opt = KFAC(model)
    cross_entropy(model(x), y).backward()
    vec = torch.cat([model.weight.grad, model.bias.grad[:, None]], dim=1).T.reshape(-1)  # column by column
    A, G = seen_by_layer(opt)["model"]
    close(torch.kron(A, G), torch.outer(vec, vec))


class Tagger(nn.Module):
    """A recurrent net with an output at every step."""

    def __init__(self, layers=2):
        super().__init__()
        self.cells = LinearRNN(3, 5, layers)
        self.output = nn.Linear(5, 4)
        self.double()

    def forward(self, x):
        return self.output(self.cells(x)[0])


def tagger_calls(model, x, loss):
    """Inputs and gradients (N, T, ...) of every product of a Tagger, by autograd and without any hook."""
    calls = {}
    for i in range(model.cells.layers):
        w_in, w_hid = model.cells.from_input[i], model.cells.from_hidden[i]
        h, inputs, hiddens, s_in, s_hid = x.new_zeros(len(x), 5), [], [], [], []
        states = []
        for t in range(x.shape[1]):
            inputs.append(x[:, t])
            hiddens.append(h)
            s_in.append(x[:, t] @ w_in.weight.T + w_in.bias)
            s_hid.append(h @ w_hid.weight.T + w_hid.bias)
            h = torch.tanh(s_in[-1] + s_hid[-1])
            states.append(h)
        calls[f"cells.from_input.{i}"] = (inputs, s_in)
        calls[f"cells.from_hidden.{i}"] = (hiddens, s_hid)
        x = torch.stack(states, dim=1)
    logits = [h @ model.output.weight.T + model.output.bias for h in states]
    calls["output"] = (states, logits)
    value = loss(torch.stack(logits, dim=1))
    return {
        name: (
            with_ones(torch.stack(a, 1)).detach(),
            torch.stack(torch.autograd.grad(value, s, retain_graph=True), 1),
        )
        for name, (a, s) in calls.items()
    }


@SHARING
@pytest.mark.parametrize("last_only", [False, True], ids=["every-step", "last-step"])
def test_recurrent_factors_are_the_definition_for_one_call_and_for_a_call_per_step(sharing, last_only):
    model, x, y = Tagger(), torch.randn(2, 6, 3, dtype=torch.float64), torch.randint(4, (2, 6))

    def loss(logits):
        if last_only:
            return cross_entropy(logits[:, -1], y[:, -1])
        return cross_entropy(logits.flatten(0, 1), y.flatten())

    terms = 1 if last_only else 6
    opt = KFAC(model, sharing=sharing, terms_per_example=terms)
    expected = tagger_calls(model, x, loss)
    loss(model(x)).backward()
    factors = seen_by_layer(opt)
    assert factors.keys() == expected.keys()
    for name, (a, g) in expected.items():
        A, G = definition(a, g, sharing, 2 * terms)
        close(factors[name][0], A)
        close(factors[name][1], G)


@SHARING
def test_symbols_are_one_hot_inputs(sharing):
    embedding, x = nn.Embedding(5, 3, dtype=torch.float64), torch.randint(5, (4, 6))
    opt = KFAC(embedding, sharing=sharing)
    (embedding(x) * (c := torch.randn(4, 6, 3, dtype=torch.float64))).sum().backward()
    A, G = definition(one_hot(x, 5).double(), c, sharing, 4)
    got = seen_by_layer(opt)["model"]
    close(got[0], A.diagonal())
    close(got[1], G)


@SHARING
def test_padding_is_an_input_of_zeros_without_a_gradient(sharing):
    embedding, x = nn.Embedding(5, 3, padding_idx=2, dtype=torch.float64), torch.randint(5, (4, 6))
    assert (x == 2).any()
    opt = KFAC(embedding, sharing=sharing)
    (embedding(x) * (c := torch.randn(4, 6, 3, dtype=torch.float64))).sum().backward()
    a = one_hot(x, 5).double()
    a[..., 2] = 0.0
    A, G = definition(a, c * (x != 2).unsqueeze(-1), sharing, 4)
    got = seen_by_layer(opt)["model"]
    close(got[0], A.diagonal())
    close(got[1], G)


def test_wide_factors_are_diagonals():
    model, x, y = mlp(3, 5, 4), torch.randn(6, 3, dtype=torch.float64), torch.randint(4, (6,))
    factors = []
    for limit in (100, 4):
        opt = KFAC(model, max_dimension=limit)
        cross_entropy(model(x), y).backward()
        factors.append(seen_by_layer(opt))
        opt.remove_hooks()
    full, narrow = factors
    assert [f.dim() for pair in narrow.values() for f in pair] == [2, 1, 1, 2]
    close(narrow["0"][1], full["0"][1].diagonal())
    close(narrow["2"][0], full["2"][0].diagonal())


@SHARING
def test_accumulated_micro_batches_are_the_whole_batch(sharing):
    model, x, y = Tagger(), torch.randn(6, 4, 3, dtype=torch.float64), torch.randn(6, 4, 4, dtype=torch.float64)
    opt = KFAC(model, sharing=sharing)
    mse_loss(model(x), y).backward()
    whole = seen_by_layer(opt)
    for part in range(3):
        rows = slice(2 * part, 2 * part + 2)
        (mse_loss(model(x[rows]), y[rows]) / 3).backward()
    for name, pair in seen_by_layer(opt).items():
        close(pair[0], whole[name][0])
        close(pair[1], whole[name][1])


def test_the_factors_of_a_sum_are_those_of_the_mean_times_the_batch():
    model, x, y = mlp(3, 5, 4), torch.randn(6, 3, dtype=torch.float64), torch.randint(4, (6,))
    mean, total = KFAC(model), KFAC(model, loss_reduction="sum")
    cross_entropy(model(x), y).backward()
    expected = seen_by_layer(mean)
    total.zero_grad()
    cross_entropy(model(x), y, reduction="sum").backward()
    for name, (A, G) in seen_by_layer(total).items():
        close(A, expected[name][0])
        close(G, 6 * expected[name][1])


def test_sampled_targets_give_the_fisher_matrix_of_the_model():
    """The last layer's G of softmax regression is E[diag(p) − p pᵀ], whatever the targets of the data."""
    model, x = nn.Linear(3, 4, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    opt = KFAC(model, fisher="sampled")
    output = model(x)
    p = output.detach().softmax(1)
    with opt.sampling():
        for _ in range(3000):
            cross_entropy(output, torch.multinomial(p, 1)[:, 0]).backward(retain_graph=True)
    A, G = seen_by_layer(opt)["model"]
    close(A, with_ones(x).T @ with_ones(x) / 5)
    expected = torch.diag(p.mean(0)) - p.T @ p / 5
    torch.testing.assert_close(G, expected, rtol=0.05, atol=0.01)


@SHARING
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sequence", [False, True], ids=["vectors", "sequences"])
def test_factors_are_those_of_curvlinops(sharing, reduction, sequence):
    reason = (
        "ORACLE SKIPPED: curvlinops is missing, K-FAC is not compared with an independent implementation; pip install "
        "--no-deps curvlinops-for-pytorch einops einconv linear_operator opt-einsum"
    )
    curvlinops = pytest.importorskip("curvlinops", reason=reason)
    model = mlp(3, 5, 4)
    if sequence:
        x, y = torch.randn(6, 7, 3, dtype=torch.float64), torch.randn(6, 7, 4, dtype=torch.float64)
        loss = nn.MSELoss(reduction=reduction)
    else:
        x, y = torch.randn(6, 3, dtype=torch.float64), torch.randint(4, (6,))
        loss = nn.CrossEntropyLoss(reduction=reduction)
    opt = KFAC(model, sharing=sharing, loss_reduction=reduction, terms_per_example=7 if sequence else 1)
    theirs = curvlinops.KFACLinearOperator(
        model,
        loss,
        list(model.parameters()),
        [(x, y)],
        fisher_type="empirical",
        kfac_approx=sharing,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    theirs.compute_kronecker_factors()
    seen_by_layer(opt)  # their passes went through our hooks
    # They undo the mean over the 4 components of a squared error, in the covariance of the gradients: √4 in the loss.
    (loss(model(x), y) * (2 if sequence and reduction == "mean" else 1)).backward()
    for name, (A, G) in seen_by_layer(opt).items():
        for ours, other in zip((A, G), factors_of_curvlinops(theirs, name), strict=True):
            close(ours, other)


# ---------------------------------------------------------------------- the formulas


def test_preconditioning_is_the_dense_solve():
    A, G, gradient = random_spd(4), random_spd(3), torch.randn(3, 4, dtype=torch.float64)
    damping = 0.3
    pi = (A.trace() / 4 / (G.trace() / 3)).sqrt()
    eye = lambda n: torch.eye(n, dtype=torch.float64)  # noqa: E731
    dense = torch.kron(A + pi * damping**0.5 * eye(4), G + damping**0.5 / pi * eye(3))
    expected = torch.linalg.solve(dense, gradient.T.reshape(-1)).view(4, 3).T
    close(precondition(gradient, *damped_inverses(A, G, damping)), expected)


@pytest.mark.parametrize("which", [(True, False), (False, True), (True, True)])
def test_diagonal_factors_are_diagonal_matrices(which):
    A, G, gradient = random_spd(4).diagonal(), random_spd(3).diagonal(), torch.randn(3, 4, dtype=torch.float64)
    dense = precondition(gradient, *damped_inverses(A.diag(), G.diag(), 0.1))
    mixed = (A if which[0] else A.diag(), G if which[1] else G.diag())
    close(precondition(gradient, *damped_inverses(*mixed, 0.1)), dense)


def test_pi_is_one_where_a_factor_vanishes():
    zero, one = torch.zeros(2, 2, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    assert pi_correction(zero, one) == pi_correction(one, zero) == pi_correction(zero, zero) == 1.0
    assert all(inverse.isfinite().all() for inverse in damped_inverses(zero, zero, 1e-3))


def test_a_factor_with_a_negative_eigenvalue_still_has_a_positive_inverse():
    """Rounding can do that: more than the shift makes up for."""
    factor = torch.diag(torch.tensor([1.0, -1e-6]))
    inverse = damped_inverse(factor, torch.tensor(1e-8))
    torch.testing.assert_close(inverse.diagonal(), torch.tensor([1.0, 1e8]))


def test_running_average_is_the_mean_at_first_and_decays_later():
    values = torch.randn(40, dtype=torch.float64)
    average = None
    for k, value in enumerate(values, start=1):
        previous, average = average, running_average(average, value, k, 0.95)
        if k <= 20:
            close(average, values[:k].mean())
        else:
            close(average, 0.95 * previous + 0.05 * value)


def test_clipping_bounds_the_whole_step():
    products = [torch.tensor(v, dtype=torch.float64) for v in (0.5, 1.5)]
    assert clip_scale(products, None) == clip_scale(products, 2.0) == 1.0
    assert clip_scale(products, 0.5) == 0.5
    assert clip_scale([torch.tensor(0.0)], 1e-3) == 1.0


def test_calls_with_fewer_examples_later_expand_but_do_not_reduce():
    form = LayerForm(inputs=2, outputs=1)
    sums = PassSums(form, expand=True)
    for n in (3, 2):
        sums.add(torch.ones(n, 2), torch.ones(n, 1))
    assert (sums.examples, sums.rows) == (3, 5)
    torch.testing.assert_close(sums.input_factor(), torch.ones(2, 2))
    sums = PassSums(form, expand=False)
    sums.add(torch.ones(3, 2), torch.ones(3, 1))
    with pytest.raises(RuntimeError, match="sharing='expand'"):
        sums.add(torch.ones(2, 2), torch.ones(2, 1))


def test_an_input_without_a_batch_is_one_example():
    sums = PassSums(LayerForm(inputs=2, outputs=1), expand=True)
    sums.add(torch.tensor([1.0, 2.0]), torch.tensor([3.0]))
    assert sums.examples == 1
    torch.testing.assert_close(sums.gradient_sum(), torch.tensor([[9.0]]))
