"""The recurrent layers with a backward pass by hand: torch's own are their oracle."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from adaqn.experiments.problems.linear_recurrent import from_torch
from adaqn.experiments.problems.unrolled import UnrolledRNN

KINDS = [("tanh", 1), ("tanh", 3), ("relu", 1), ("relu", 3)]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def rnn(request):
    torch.manual_seed(0)
    nonlinearity, layers = request.param
    return UnrolledRNN(3, 5, layers, nonlinearity).double()


def inputs(rnn, steps=7):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, steps, 3, dtype=torch.double, generator=generator, requires_grad=True)
    first = torch.randn(rnn.num_layers, 4, 5, dtype=torch.double, generator=generator, requires_grad=True)
    return x, first


def value(forward, x, first):
    """Of all outputs and last states, each with another weight."""
    output, last = forward(x, first)
    return (output.sin() * torch.linspace(1, 2, output.numel()).view_as(output)).sum() + last.square().sum()


def torchs(rnn):
    return lambda x, first=None: nn.RNN.forward(rnn, x, first)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_outputs_and_gradients_are_torchs(rnn, steps):
    x, first = inputs(rnn, steps)
    torch.testing.assert_close(rnn(x, first), torchs(rnn)(x, first))
    torch.testing.assert_close(rnn(x), torchs(rnn)(x))
    wanted = [x, first, *rnn.parameters()]
    ours, theirs = (torch.autograd.grad(value(forward, x, first), wanted) for forward in (rnn, torchs(rnn)))
    torch.testing.assert_close(ours, theirs)


def test_a_hidden_state_in_another_precision_is_refused(rnn):
    x, first = inputs(rnn)
    with pytest.raises(ValueError, match=r"hidden state is torch.float32 and the input torch.float64"):
        rnn(x, first.float())


def test_second_derivatives_are_torchs(rnn):
    x, first = inputs(rnn)
    wanted = [x, first, *rnn.parameters()]

    def product(forward):
        gradients = torch.autograd.grad(value(forward, x, first), wanted, create_graph=True)
        return torch.autograd.grad(sum(g.cos().sum() for g in gradients), wanted)

    torch.testing.assert_close(product(rnn), product(torchs(rnn)))


def test_second_derivatives_with_part_of_the_weights_frozen(rnn):
    x, _ = inputs(rnn)
    rnn.weight_ih_l0.requires_grad_(False)
    wanted = [p for p in rnn.parameters() if p.requires_grad]

    def product(forward):
        gradients = torch.autograd.grad(forward(x.detach())[0].sin().sum(), wanted, create_graph=True)
        return torch.autograd.grad(sum(g.cos().sum() for g in gradients), wanted)

    torch.testing.assert_close(product(rnn), product(torchs(rnn)))


def test_forward_mode_is_torchs(rnn):
    x, first = (tensor.detach() for tensor in inputs(rnn))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found = forward_ad.unpack_dual(rnn(dual, first)[0]).tangent
    step = 1e-6
    difference = (rnn(x + step, first)[0] - rnn(x - step, first)[0]) / (2 * step)
    torch.testing.assert_close(found, difference, rtol=1e-5, atol=1e-7)


def test_jacobians_and_batches_of_gradients_are_torchs(rnn):
    x, _ = (tensor.detach() for tensor in inputs(rnn))
    ours, theirs = (
        torch.func.jacrev(lambda x, forward=forward: forward(x)[0])(x) for forward in (rnn, torchs(rnn))
    )  # fmt: skip
    torch.testing.assert_close(ours, theirs)


def test_autocast_packed_and_empty_inputs_are_torchs(rnn):
    x, first = (tensor.detach() for tensor in inputs(rnn))
    with torch.autocast("cpu"):
        assert rnn.float()(x.float())[0].dtype == torchs(rnn)(x.float())[0].dtype
    rnn.double()
    lengths = torch.tensor([7, 5, 2, 1])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    torch.testing.assert_close(rnn(packed, first)[0].data, torchs(rnn)(packed, first)[0].data)
    assert rnn(x[:0])[0].shape == torchs(rnn)(x[:0])[0].shape


def test_a_state_of_another_shape_is_an_error(rnn):
    x, first = inputs(rnn)
    for wrong in (first[:, :1], torch.cat([first, first])):
        with pytest.raises(RuntimeError, match="Expected hidden size"):
            rnn(x, wrong)


def test_gradients_do_not_change_what_was_returned(rnn):
    x, first = inputs(rnn)
    output, _ = rnn(x, first)
    before = output.detach().clone()
    output.square().sum().backward(retain_graph=True)
    once = x.grad.clone()
    output.square().sum().backward()
    torch.testing.assert_close(output.detach(), before, rtol=0, atol=0)
    torch.testing.assert_close(x.grad, 2 * once)


def test_a_single_sequence_needs_no_batch(rnn):
    x, _ = inputs(rnn)
    torch.testing.assert_close(rnn(x[0])[0], rnn(x[:1])[0][0])


def test_it_becomes_linear_layers_like_torchs(rnn):
    x, first = inputs(rnn)
    torch.testing.assert_close(from_torch(rnn)(x, first), rnn(x, first))
