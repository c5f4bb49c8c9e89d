"""A monitor is evaluated when it is made, or else in the first step: mistakes show before anything has changed."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adaqn import AdaQN, Monitor, RotatingMonitor
from adaqn.evaluation.trial import described

TOKENS, NEXT = torch.randint(0, 11, (8, 6)), torch.randint(0, 11, (8, 6))


class Language(nn.Module):
    """As nanoGPT's: the logits of all positions and a loss with targets, those of the last position without."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 5), nn.Linear(5, 11)

    def forward(self, tokens, targets=None):
        logits = self.head(self.embed(tokens))
        if targets is None:
            return logits[:, [-1]], None
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())


class Output(dict):
    """As Hugging Face's: a mapping with attributes."""

    def __getattr__(self, name):
        return self[name]


class Hugging(Language):
    def forward(self, input_ids, labels=None):
        logits, loss = super().forward(input_ids, labels)
        return Output(logits=logits) if loss is None else Output(loss=loss, logits=logits)


def per_sequence(logits, targets):
    return cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)


def stepped(model, monitor, **options):
    opt = AdaQN(model.parameters(), monitor=monitor, **options)
    for _ in range(5):
        opt.zero_grad()
        model(TOKENS, NEXT)[1].backward()
        opt.step()
    return opt


# ---------------------------------------------------------------------- recipes


def test_several_inputs():
    monitor = Monitor(Language(), lambda output, target: per_sequence(output[0], target), (TOKENS, NEXT, NEXT))
    assert monitor().shape == (8,)
    torch.testing.assert_close(monitor().mean(), monitor.model(TOKENS, NEXT)[1])


def test_a_mapping():
    batch = {"input_ids": TOKENS, "labels": NEXT}
    monitor = Monitor(Hugging(), lambda output, batch: per_sequence(output.logits, batch["labels"]), batch)
    assert monitor().shape == (8,)


@pytest.mark.parametrize(
    "model, batch",
    [
        (Language(), (TOKENS, NEXT)),
        (Hugging(), (TOKENS, NEXT)),
        (Hugging(), {"input_ids": TOKENS, "labels": NEXT}),
    ],
    ids=["tuple", "output", "mapping"],
)
def test_a_loss_of_its_own(model, batch):
    monitor = Monitor(model, None, batch)
    assert monitor.loss_fn is None
    assert monitor.is_scalar
    output = model(TOKENS, NEXT)
    torch.testing.assert_close(monitor(), output[1] if isinstance(output, tuple) else output.loss)


def test_a_loss_of_its_own_may_be_one_per_example_and_need_no_target():
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return (self.layer(x) - x).square().mean(1)

    model = Autoencoder()
    assert Monitor(model, None, (torch.randn(4, 3),))().shape == (4,)
    rotating = RotatingMonitor(model, None, [(torch.randn(4, 3),), (torch.randn(5, 3),)])
    rotating.advance()
    assert rotating().shape == (5,)


def test_losses_of_positions_become_those_of_examples():
    loss_fn = lambda output, target: cross_entropy(output[0].transpose(1, 2), target, reduction="none")  # noqa: E731
    monitor = Monitor(Language(), loss_fn, (TOKENS, NEXT, NEXT))
    torch.testing.assert_close(monitor(), per_sequence(monitor.model(TOKENS, NEXT)[0], NEXT))


def test_losses_of_something_else_are_averaged_and_that_is_said():
    loss_fn = lambda output, target: cross_entropy(output[0].transpose(1, 2), target, reduction="none").T  # noqa: E731
    with pytest.warns(UserWarning, match=r"shape \(6, 8\) for a batch of 8 examples.*cannot estimate its noise"):
        monitor = Monitor(Language(), loss_fn, (TOKENS, NEXT, NEXT))
    assert monitor().dim() == 0  # said once


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "loss_fn, batch, message",
    [
        (
            nn.CrossEntropyLoss(),
            (TOKENS, NEXT),
            r"loss_fn\(output, target\): TypeError.*Tensor \(8, 1, 11\).*loss_fn=None",
        ),
        (
            lambda output, target: output[1],  # there is none without targets
            (TOKENS, NEXT),
            r"it returned None instead of a loss.*\(tokens, targets, targets\) calls model",
        ),
        (
            lambda output, target: per_sequence(output[0], target),
            (TOKENS, NEXT),
            r"\(8, 1, 11\).*the target is Tensor \(8, 6\) int64.*\(tokens, targets, targets\) calls model",
        ),
        (
            nn.CrossEntropyLoss(),
            (TOKENS, NEXT, NEXT, NEXT),
            r"model\(\*inputs\): TypeError.*3 were given|takes from 2 to 3",
        ),
        (None, (TOKENS,), "returned tuple, with no scalar and no `loss` in it: is it called with the targets"),
        (
            None,
            {"tokens": TOKENS, "labels": NEXT},
            r"model\(\*\*batch\).*labels.*The batch has dict with tokens: Tensor",
        ),
        (lambda output, target: output[0].sum(), (TOKENS.float(), NEXT), r"model\(\*inputs\)"),
    ],
    ids=["tuple", "none", "last-position", "inputs", "no-targets", "names", "dtype"],
)
def test_it_is_said_when_the_monitor_is_made(loss_fn, batch, message):
    model = Language()
    with pytest.raises(ValueError, match=message) as raised:
        Monitor(model, loss_fn, batch)
    assert "docs/frameworks.md#the-monitor-of-your-model" in str(raised.value)
    assert raised.value.__cause__ is not None


def test_lists_in_a_batch_are_described_in_a_few_words_and_to_be_converted():
    batch = {"input_ids": TOKENS.repeat(8, 6).tolist(), "labels": NEXT.repeat(8, 6).tolist()}
    with pytest.raises(ValueError, match=r"input_ids: list of 64, the first a list of 36, the first an int") as raised:
        Monitor(Hugging(), None, batch)
    assert "Convert the lists to tensors: a tokenizer does with return_tensors='pt'" in str(raised.value)
    assert len(str(raised.value)) < 600
    for inputs, target in ((TOKENS.tolist(), NEXT), (TOKENS, NEXT.tolist())):
        with pytest.raises(ValueError, match="Convert the lists to tensors"):
            Monitor(nn.Embedding(11, 11), nn.CrossEntropyLoss(), (inputs, target))


def test_long_mappings_and_tuples_are_described_in_a_few_words():
    assert described({f"x{i}": 1 for i in range(9)}).endswith("x5: int, and 3 more")
    assert (
        described(((torch.ones(2),) * 2,) * 12) == "tuple of 12, the first a (Tensor (2,) float32, Tensor (2,) float32)"
    )


class TwoLosses(Language):
    def forward(self, tokens, targets):
        logits, loss = super().forward(tokens, targets)
        return loss, logits.square().mean(), logits


def test_several_scalars_are_counted_and_the_message_says_what_to_write():
    message = r"returned tuple with 2 scalars, entries 0, 1: .*lambda output, _: output\[0\].*\(\*batch, None\)"
    with pytest.raises(ValueError, match=message):
        Monitor(TwoLosses(), None, (TOKENS, NEXT))
    model, batch = TwoLosses(), (TOKENS, NEXT)
    monitor = Monitor(model, lambda output, _: output[0], (*batch, None))
    torch.testing.assert_close(monitor(), model(*batch)[0])


@pytest.mark.parametrize(
    "loss_fn, message",
    [
        (lambda output, target: (output - target)[:5, 0], r"5 losses for a batch of 256 examples.*so few say little"),
        (
            lambda output, target: (output - target).flatten(),
            r"1024 losses for a batch of 256 examples.*noise comes out too small.*losses\.view\(256, -1\)\.mean\(1\)",
        ),
    ],
    ids=["fewer", "more"],
)
def test_another_number_of_losses_than_of_examples_is_said_once(loss_fn, message):
    batch = torch.randn(256, 3), torch.randn(256, 4)
    with pytest.warns(UserWarning, match=message) as said:
        monitor = Monitor(nn.Linear(3, 4), loss_fn, batch)
    assert len(said) == 1
    monitor()  # and not again


def test_nothing_is_said_of_the_number_of_losses_where_that_of_examples_is_not_known():
    Monitor(nn.Linear(3, 4), lambda output, target: output.flatten(), (torch.randn(8, 3), torch.randn(5)))
    along_1 = torch.randn(8, 16, 3), torch.randn(8, 16, 4)
    Monitor(nn.Linear(3, 4), lambda output, target: (output - target).square().mean((0, 2)), along_1, batch_dim=1)
    Monitor(nn.Linear(3, 4), lambda output, target: output.square().mean(1), (torch.randn(8, 3), None), chunk=3)


def test_nothing_is_said_of_losses_of_pairs_or_windows_of_examples():
    x = torch.randn(8, 3)
    for loss_fn in (lambda output, _: (output[::2] - output[1::2])[:, 0], lambda output, _: output.diff(dim=0)[:, 0]):
        assert Monitor(nn.Linear(3, 4), loss_fn, (x, None))().shape in ((4,), (7,))


def test_classes_in_the_last_dimension():
    with pytest.raises(ValueError, match=r"classes in dimension 1: output\.transpose\(1, 2\)"):
        Monitor(nn.Embedding(11, 7), nn.CrossEntropyLoss(), (TOKENS, NEXT % 7))


def test_memory_that_is_not_enough_is_passed_on():
    def greedy(output, target):
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        Monitor(nn.Linear(3, 1), greedy, (torch.randn(4, 3), torch.randn(4, 1)))


def test_making_one_leaves_no_trace():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))
    before, random = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    Monitor(model, nn.MSELoss(), (torch.randn(4, 3, generator=torch.Generator()), torch.zeros(4, 1)))
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training


# ---------------------------------------------------------------------- not ready yet


def test_a_model_that_is_not_ready_is_checked_in_the_first_step_before_anything_changes():
    model = nn.Sequential(nn.Linear(3, 2)).double()
    monitor = Monitor(model, lambda output, target: output[:, 5], (torch.randn(4, 3), torch.randn(4)))  # float32
    assert not monitor.is_tried
    model.float()
    opt = AdaQN(model.parameters(), monitor=monitor)
    model(torch.randn(4, 3)).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"loss_fn\(output, target\): IndexError"):
        opt.step()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert opt.stats.steps == 0
    opt.monitor = Monitor(model, nn.MSELoss(), (torch.randn(4, 3), torch.randn(4, 2)))
    opt.step()
    assert opt.stats.steps == 1


@pytest.mark.parametrize(
    "make", [lambda: nn.LazyLinear(1), lambda: nn.Linear(3, 1, device="meta")], ids=["lazy", "meta"]
)
def test_weights_that_are_yet_to_be_made(make):
    calls = []
    Monitor(make(), lambda *_: calls.append(1), (torch.randn(4, 3), torch.randn(4, 1)))
    assert not calls


def test_a_ready_one_is_evaluated_once_and_not_again_in_the_first_step():
    model, calls = nn.Linear(3, 1), []

    def loss_fn(output, target):
        calls.append(1)
        return (output - target).square().mean(1)

    monitor = Monitor(model, loss_fn, (torch.randn(40, 3), torch.randn(40, 1)))
    assert (len(calls), monitor.is_tried) == (1, True)
    opt = AdaQN(model.parameters(), monitor=monitor)
    model(torch.randn(4, 3)).sum().backward()
    opt.step()
    assert len(calls) == 1
    monitor.loss_fn = nn.MSELoss()
    assert not monitor.is_tried


def test_functions_of_the_users_own_are_not_called_for_a_check():
    model, calls = nn.Linear(3, 1), []
    opt = AdaQN(model.parameters(), monitor=lambda: calls.append(1) or 1.0)
    model(torch.randn(4, 3)).sum().backward()
    opt.step()
    assert not calls


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda model: lambda: cross_entropy(model(TOKENS)[0].view(-1, 11), NEXT.view(-1)),
            ValueError,
            r"^the monitor raised ValueError: Expected input batch_size \(8\)",
        ),
        (lambda model: lambda: model(TOKENS, NEXT), TypeError, "^the monitor returned tuple: it must return"),
        (lambda model: lambda: {}["loss"], ValueError, "^the monitor raised KeyError: 'loss'"),
    ],
    ids=["last-position", "tuple", "key"],
)
def test_a_mistake_in_a_function_says_where_training_stands_and_how_it_goes_on(make, error, message):
    model = Language()
    opt = AdaQN(model.parameters(), monitor=make(model), reject="factor")
    for k in range(5):
        opt.zero_grad()
        model(TOKENS, NEXT)[1].backward()
        if k < 4:
            opt.step()
    with pytest.raises(error, match=message) as raised:
        opt.step()
    assert raised.value.__cause__ is not None
    assert "steps made in this cycle: 5" in str(raised.value)
    assert "assign a corrected function to opt.monitor and go on" in str(raised.value)
    assert (opt.stats.steps, opt.stats.cycles) == (5, 0)
    opt.monitor = lambda: model(TOKENS, NEXT)[1]
    opt.step()
    assert (opt.stats.steps, opt.stats.cycles) == (6, 1)


def test_an_error_of_another_kind_is_passed_on():
    def monitor():
        raise torch.OutOfMemoryError("no room")

    model = Language()
    with pytest.raises(torch.OutOfMemoryError, match=r"^no room$"):
        stepped(model, monitor)


def not_a_number(output, target):
    return (output - target).square().mean(1) * torch.nan


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["ready", "not-ready"])
def test_a_loss_that_is_nan_is_an_error_in_the_first_step_before_anything_changes(dtype):
    model = nn.Linear(3, 2).to(dtype)
    monitor = Monitor(model, not_a_number, (torch.randn(4, 3), torch.randn(4, 2)))
    assert monitor.is_tried == (dtype == torch.float32)
    model.float()
    opt = AdaQN(model.parameters(), monitor=monitor)
    model(torch.randn(4, 3)).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="the monitor returned nan at the weights before the first step"):
        opt.step()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert opt.stats.steps == 0
    monitor.loss_fn = nn.MSELoss()
    opt.step()
    assert opt.stats.steps == 1


def test_weights_that_were_loaded_after_the_monitor_was_made():
    model = nn.Linear(3, 2)
    good = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.weight.fill_(torch.nan)
    monitor = Monitor(model, nn.MSELoss(), (torch.randn(4, 3), torch.randn(4, 2)))
    model.load_state_dict(good)
    opt = AdaQN(model.parameters(), monitor=monitor)
    model(torch.randn(4, 3)).sum().backward()
    opt.step()
    assert opt.stats.steps == 1


def test_nan_is_no_error_where_the_monitor_judges_nothing_or_its_sets_change():
    model, batch = nn.Linear(3, 2), (torch.randn(4, 3), torch.randn(4, 2))
    spoilt = torch.full((4, 3), torch.nan), batch[1]
    for monitor, reject in (
        (Monitor(model, not_a_number, batch), "none"),
        (RotatingMonitor(model, nn.MSELoss(), [spoilt, batch]), "paired"),
    ):
        opt = AdaQN(model.parameters(), monitor=monitor, reject=reject)
        model(batch[0]).sum().backward()
        opt.step()
        assert opt.stats.steps == 1


# ---------------------------------------------------------------------- what is lost with one number


def test_one_number_is_said_in_the_first_step_with_what_is_lost():
    model = Language()
    with pytest.warns(UserWarning, match=r"one number for its batch.*noise is unknown.*reject='factor'") as said:
        stepped(model, Monitor(model, None, (TOKENS, NEXT)))
    assert len(said) == 1


def test_nothing_is_said_where_nothing_is_lost():
    model = Language()
    stepped(model, Monitor(model, None, (TOKENS, NEXT)), reject="factor")
    stepped(model, Monitor(model, lambda output, target: per_sequence(output[0], target), (TOKENS, NEXT, NEXT)))
