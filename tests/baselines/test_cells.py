"""The recurrent layers made of nn.Linear are torch's own, number by number."""

import copy

import pytest
import torch
from torch import nn

from adaqn.experiments.problems.linear_recurrent import LinearGRU, LinearLSTM, LinearRNN, from_torch

SHAPE = {"input_size": 3, "hidden_size": 5, "num_layers": 2, "batch_first": True, "dtype": torch.float64}
TWINS = {
    "tanh": lambda **o: nn.RNN(**{**SHAPE, **o}),
    "relu": lambda **o: nn.RNN(nonlinearity="relu", **{**SHAPE, **o}),
    "lstm": lambda **o: nn.LSTM(**{**SHAPE, **o}),
    "gru": lambda **o: nn.GRU(**{**SHAPE, **o}),
}
EVERY = pytest.mark.parametrize("make", TWINS.values(), ids=TWINS.keys())


def first_state(module, batch=4):
    shape = (2, 5) if batch is None else (2, batch, 5)
    h, c = torch.randn(2, *shape, dtype=torch.float64)
    return (h, c) if isinstance(module, nn.LSTM) else h


def parts(state):
    return state if isinstance(state, tuple) else (state,)


@EVERY
@pytest.mark.parametrize("given", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_outputs_states_and_gradients_are_those_of_torch(make, given, bias):
    rnn = make(bias=bias)
    cells = from_torch(rnn)
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    first = first_state(rnn) if given else None
    expected, got = rnn(x, first), cells(x, first)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected[0])
    for output, last in (expected, got):
        ((output * weights).sum() + sum(p.square().sum() for p in parts(last))).backward()
    for i in range(2):
        for kind, linear in (("ih", cells.from_input[i]), ("hh", cells.from_hidden[i])):
            for name, p in linear.named_parameters():
                torch.testing.assert_close(p.grad, getattr(rnn, f"{name}_{kind}_l{i}").grad, rtol=1e-11, atol=1e-12)


@EVERY
def test_sequences_without_a_batch(make):
    rnn = make()
    x, first = torch.randn(7, 3, dtype=torch.float64), first_state(rnn, None)
    torch.testing.assert_close(from_torch(rnn)(x, first), rnn(x, first), rtol=1e-12, atol=1e-12)


@EVERY
def test_from_torch_keeps_dtype_mode_and_the_number_of_parameters(make):
    rnn = make(dtype=torch.float32).eval()
    cells = from_torch(rnn)
    assert {p.dtype for p in cells.parameters()} == {torch.float32}
    assert not cells.training
    assert sum(p.numel() for p in cells.parameters()) == sum(p.numel() for p in rnn.parameters())


def test_copies_are_weights_of_their_own():
    rnn = TWINS["tanh"]()
    cells = from_torch(rnn)
    before = copy.deepcopy(rnn.state_dict())
    with torch.no_grad():
        for p in cells.parameters():
            p.zero_()
    assert all(torch.equal(before[name], value) for name, value in rnn.state_dict().items())


@pytest.mark.parametrize(
    "option",
    [{"batch_first": False}, {"bidirectional": True}, {"dropout": 0.5}],
    ids=["time-first", "bidirectional", "dropout"],
)
def test_what_is_not_supported_is_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        from_torch(TWINS["tanh"](**option))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="'sigmoid'"):
        LinearRNN(3, 5, nonlinearity="sigmoid")
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        LinearLSTM(3, 0)
    with pytest.raises(TypeError, match="got Linear"):
        from_torch(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="use from_torch"):
        LinearGRU(3, 5, layers=2).copy_from(nn.LSTM(3, 5, num_layers=2))
    with pytest.raises(ValueError, match="use from_torch"):
        LinearRNN(3, 5).copy_from(nn.RNN(3, 5, nonlinearity="relu"))
    with pytest.raises(ValueError, match=r"got \(4, 7, 2\)"):
        LinearRNN(3, 5)(torch.randn(4, 7, 2))
    with pytest.raises(TypeError, match="PackedSequence"):
        LinearRNN(3, 5)(nn.utils.rnn.pack_sequence([torch.randn(7, 3)]))
