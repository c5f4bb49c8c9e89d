"""What a monitor is asked about: other batches, other lengths, targets that its loss ignores."""

import copy

import pytest
import torch
from torch import nn

from adaqn import AdaQN, Monitor, PairOptions, RotatingMonitor


def regression(examples=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 4, generator=generator)
    return x, torch.sin(x.sum(1, keepdim=True))


def train(model, opt, steps):
    x, target = regression(256, seed=9)
    for k in range(steps):
        rows = torch.randperm(256, generator=torch.Generator().manual_seed(k))[:16]
        opt.zero_grad()
        nn.functional.mse_loss(model(x[rows]), target[rows]).backward()
        opt.step()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def test_a_function_that_returns_another_number_of_losses_is_one_error_and_nothing_is_lost():
    model, count = net(), 60
    x, target = regression()

    def losses():
        with torch.no_grad():
            return (model(x[:count]) - target[:count]).square().mean(1)

    opt = AdaQN(model.parameters(), monitor=losses)
    train(model, opt, 12)
    count = 50
    with pytest.raises(ValueError, match=r"50 losses, and 60 losses at the last accepted average.*opt.monitor"):
        train(model, opt, 5)
    opt.monitor = losses
    train(model, opt, 40)
    assert opt.stats.rejected == 0


def test_another_batch_is_a_new_start():
    """The losses at the anchor and the best are of the batch before: neither is held against the new one."""
    model = net()
    x, target = regression(128)
    monitor = Monitor(model, nn.MSELoss(), (x, target))
    opt = AdaQN(model.parameters(), monitor=monitor)
    train(model, opt, 50)
    monitor.batch = (x[:100], target[:100] + 5.0)  # fewer examples, and a loss many times as high
    train(model, opt, 50)
    assert opt.stats.rejected == 0
    assert opt.stats.cycles == 20


@pytest.mark.parametrize("seed", [0, 1])
def test_sets_of_different_difficulty_take_turns_without_rejections(seed):
    model = net()
    easy, hard = regression(128), regression(128, seed=1)
    monitor = RotatingMonitor(model, nn.MSELoss(), [easy, (hard[0], hard[1] + 3.0)])
    opt = AdaQN(model.parameters(), monitor=monitor)
    train(model, opt, 400)
    assert opt.stats.rejected <= 8
    assert opt.stats.step_multiplier > 0.3


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))

    def forward(self, tokens):
        return self.table(tokens).transpose(1, 2)


def padded(target, rows):
    found = target.clone()
    found[rows, 3:] = -100
    return found


def test_padding_in_a_later_batch_or_chunk_is_noticed():
    model, loss = Words(), nn.CrossEntropyLoss()
    tokens, target = torch.randint(7, (2, 40, 12), generator=torch.Generator().manual_seed(1))
    later = padded(target, slice(None))
    monitor = RotatingMonitor(model, loss, [(tokens, target), (tokens, later)])
    assert monitor().shape == (40,)
    monitor.advance()
    torch.testing.assert_close(monitor().mean(), loss(model(tokens), later).detach())
    second = padded(target, slice(20, None))
    with pytest.warns(UserWarning, match="targets to be ignored: the monitor averages the means of chunks"):
        monitor = Monitor(model, loss, (tokens, second), chunk=20)
    parts = [loss(model(tokens[rows]), second[rows]).detach() for rows in (slice(20), slice(20, None))]
    torch.testing.assert_close(monitor().float(), torch.stack(parts).mean())


@pytest.mark.parametrize("chunk", [None, 4, 8])
@pytest.mark.parametrize("loss_fn", [nn.MSELoss(), lambda output, target: (output - target).square().mean(2)])
def test_examples_along_another_dimension(loss_fn, chunk):
    recurrent = nn.RNN(3, 5)

    class First(nn.Module):
        def forward(self, x):
            return recurrent(x)[0]

    x, target = torch.randn(6, 10, 3), torch.randn(6, 10, 5)
    found = Monitor(First(), loss_fn, (x, target), batch_dim=1, chunk=chunk)()
    expected = (recurrent(x)[0] - target).square().mean((0, 2)).detach()
    torch.testing.assert_close(found, expected)


def test_a_copy_of_a_monitor_compares_anew():
    monitor = copy.deepcopy(Monitor(net(), nn.MSELoss(), regression()))
    assert monitor().shape == (64,)


PAIRS = PairOptions(curvature="monitored", scale="stored")


@pytest.mark.parametrize(
    "loss_fn",
    [lambda output, target: (output.detach() - target).square().mean(1), lambda output, _: output.argmax(1).float()],
    ids=["detached", "argmax"],
)
def test_a_loss_without_a_gradient_is_an_error_before_the_first_step(loss_fn):
    model = net()
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, regression()), pairs=PAIRS)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="the monitored loss has no gradient"):
        train(model, opt, 1)
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))
    opt.monitor = Monitor(model, nn.MSELoss(), regression())
    train(model, opt, 20)
    assert opt.stats.stored > 0


def test_a_function_that_returns_a_number_is_told_that_it_has_no_gradient():
    model = net()
    x, target = regression()
    opt = AdaQN(model.parameters(), monitor=lambda: float((model(x) - target).square().mean().detach()), pairs=PAIRS)
    with pytest.raises(ValueError, match=r"has no gradient.*nothing is lost: assign a corrected function"):
        train(model, opt, 5)


def test_a_monitor_of_another_model_is_noticed():
    model, other = net(), net()
    with pytest.warns(UserWarning, match="has none of the parameters that are trained"):
        train(model, AdaQN(model.parameters(), monitor=Monitor(other, nn.MSELoss(), regression())), 1)
    opt = AdaQN(model.parameters(), monitor=Monitor(other, nn.MSELoss(), regression()), pairs=PAIRS)
    with pytest.raises(ValueError, match="is it of another model"):
        train(model, opt, 1)


@pytest.mark.parametrize("options", [{"autocast": torch.int32}, {"batch_dim": 5}])
def test_arguments_that_mean_nothing(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Monitor(net(), nn.MSELoss(), regression(), **options)


# ---------------------------------------------------------------------- a loss that becomes another function (D39)


class Shifted:
    """The loss of another task from time to time, as with a target network, a discriminator or an annealed term."""

    shift = 0.0

    def __call__(self, output, target):
        return (output - target - self.shift).square().mean(1)


def train_shifted(model, opt, loss, shifts, steps=50):
    x, target = regression(256, seed=9)
    for j, shift in enumerate(shifts):
        loss.shift = shift
        for k in range(steps):
            rows = torch.randperm(256, generator=torch.Generator().manual_seed(100 * j + k))[:16]
            opt.zero_grad()
            loss(model(x[rows]), target[rows]).mean().backward()
            opt.step()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reject": "factor"},
        {"preset": "paper", "lr": 0.03},
        {"pairs": PairOptions(curvature="monitored", scale="stored")},
        {"pairs": PairOptions(fisher_size=20)},
    ],
    ids=["default", "factor", "paper", "monitored pairs", "fisher pairs"],
)
def test_a_loss_that_becomes_another_function_does_not_stop_the_training(options):
    """Each change raises the monitored loss at every point a hundredfold; that is no fault of the steps."""
    model, loss = net(), Shifted()
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss, regression(128)), **options)
    shifts = [0.0, 3.0, 6.0, 9.0]
    train_shifted(model, opt, loss, shifts, steps=100)
    assert opt.stats.rejected <= 4
    assert opt.stats.step_multiplier >= 0.5
    x, target = regression(128)
    with torch.no_grad():
        assert float(loss(model(x), target).mean()) < 0.2 * 9.0


def test_the_cycle_of_a_change_is_judged_by_the_new_function():
    """Good steps are kept although the loss is higher than it was, bad ones are rejected although it is lower."""
    verdicts = []
    model, loss = net(), Shifted()
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss, regression(128)), on_cycle=verdicts.append)
    train_shifted(model, opt, loss, [0.0, 9.0], steps=40)
    assert opt.stats.rejected == 0
    before, after = verdicts[7], verdicts[8]
    assert after.anchor_loss > 10 * before.candidate_loss, "what the anchor's loss is now, not what it was"

    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-30.0)  # far worse for both functions
    train_shifted(model, opt, loss, [10.0], steps=5)
    assert opt.stats.rejected == 1


def test_a_loss_that_stays_the_same_is_asked_at_the_anchor_only_for_a_rejection():
    """One evaluation per cycle (D8), and one more where a cycle would be rejected; the verdict is what it was."""
    model, asked = net(), []
    x, target = regression(128)

    def losses():
        asked.append(1)
        with torch.no_grad():
            return (model(x) - target).square().mean(1)

    opt = AdaQN(model.parameters(), monitor=losses, lr=1.0)
    train(model, opt, 200)
    assert opt.stats.rejected > 0
    assert len(asked) == opt.stats.cycles + 1 + opt.stats.rejected


def test_whichever_evaluation_of_a_rejected_cycle_raises_nothing_is_lost():
    """With pairs and two looks there are up to five, and the sum of the cycle has been written over before the last."""
    ends, raised = [], 0
    for failing in range(8):
        model, calls = net(), None

        def losses(output, target):
            nonlocal calls
            if calls is not None:
                calls += 1
                if calls == failing:  # noqa: B023
                    raise OSError("gone")
            return (output - target).square().mean(1)

        monitor = Monitor(model, losses, regression(128))
        opt = AdaQN(model.parameters(), monitor=monitor, pairs=PairOptions(fisher_size=20))
        train(model, opt, 30)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(-30.0)
        train(model, opt, 4)
        calls, rejected = 0, opt.stats.rejected
        try:
            train(model, opt, 1)
        except OSError:
            raised += 1
            train(model, opt, 1)  # the next step judges the cycle
        assert opt.stats.rejected == rejected + 1
        ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    assert raised >= 3
    assert all(torch.equal(end, ends[0]) for end in ends), "all are back at the anchor"


def test_steps_that_rejections_have_nearly_stopped_are_a_warning():
    model = net()
    opt = AdaQN(model.parameters(), lr=100.0, monitor=Monitor(model, nn.MSELoss(), regression(128)))
    with pytest.warns(UserWarning, match=r"less than a thirtieth of lr.*opt.explain\(\)"):
        train(model, opt, 600)
    assert opt.stats.step_multiplier < 1 / 32
