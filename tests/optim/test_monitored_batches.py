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
