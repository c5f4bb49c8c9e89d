"""What few people do, and what happens then: each ends as its documentation says, or with one clear error."""

import copy

import pytest
import torch
from torch import nn

from adaqn import OLBFGS, AdaQN, Monitor, PairOptions, Secant, StorageOptions
from adaqn.optim.curvatures import BatchCurvature
from adaqn.optim.judge import Judge
from adaqn.optim.method import Method
from adaqn.optim.monitored import MonitoredPass
from adaqn.optim.removed import from_flat
from adaqn.parameters.flat import FlatParameters
from inside import kept
from oracles import NoisyValley, Vector, quiet, run


def stepped(opt, w, steps=1, gradient=1.0):
    for _ in range(steps):
        w.grad = torch.full_like(w, gradient)
        opt.step()


# ---------------------------------------------------------------------- the monitored gradient


class Routed(nn.Module):
    """Which of its parameters an example uses depends on the example."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return self.one * x if bool((x > 0).all()) else self.other * x


def test_a_chunk_that_does_not_use_a_parameter_leaves_the_gradient_of_the_others():
    """It was lost: the mean over four examples was that over the last two."""
    model, x = Routed(), torch.tensor([1.0, 3.0, -1.0, -2.0])
    monitor = Monitor(model, nn.MSELoss(), (x, torch.zeros(4)), chunk=2)
    flat = FlatParameters(list(model.parameters()))
    found = MonitoredPass(monitor, flat, None)
    found()
    gradient = flat.new()
    found.read_into(flat, gradient)
    expected = torch.stack([2.0 * 2.0 * x[:2].square().sum() / 4, 2.0 * 3.0 * x[2:].square().sum() / 4])
    torch.testing.assert_close(gradient, expected)


def test_a_loss_in_half_precision_has_the_gradient_of_the_wide_one():
    model, batch = nn.Linear(4, 1), (torch.randn(8, 4), torch.randn(8, 1))
    flat, found = FlatParameters(list(model.parameters())), []
    for autocast in (None, torch.float16):
        one = MonitoredPass(Monitor(model, nn.MSELoss(), batch, autocast=autocast), flat, None)
        one()
        found.append(flat.new())
        one.read_into(flat, found[-1])
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-2)


def test_only_a_monitor_can_be_cut():
    model = nn.Linear(2, 1)
    flat = FlatParameters(list(model.parameters()))
    with pytest.raises(ValueError, match=r"examples=3 of a monitored batch: only an adaqn\.Monitor can be cut"):
        MonitoredPass(lambda: model(torch.ones(1, 2)).sum(), flat, 3)()


def test_losses_of_another_number_are_not_cut():
    """As of a model whose examples are windows of what it is given."""
    monitor = Monitor(nn.Identity(), lambda output, target: output[1:] - output[:-1], (torch.arange(8.0),) * 2)
    assert not monitor.can_be_cut(4)


# ---------------------------------------------------------------------- saving and averages


def test_parameters_of_several_formats_are_refused():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(model.parameters())
    run(opt, model, problem, range(7))
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][0]["format"] = 3
    with pytest.raises(ValueError, match="have several formats"):
        opt.load_state_dict(saved)


def test_the_number_of_pairs_that_a_secant_h0_has_seen_is_saved():
    def make():
        w = nn.Parameter(torch.ones(3, dtype=torch.float64))
        return w, quiet([w], scaling=Secant(), cycle_length=2, pairs=PairOptions(memory_size=2, fisher_size=4))

    (w, opt), (other, loaded) = make(), make()
    for k in range(9):
        stepped(opt, w, gradient=1.0 + k)
    other.data.copy_(w.data)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert loaded.scaling.pairs == opt.scaling.pairs
    for one, of in ((opt, w), (loaded, other)):
        stepped(one, of, 5)
    assert torch.equal(w, other)


def test_a_rejection_shows_the_anchor_where_no_average_grows():
    losses = iter([1.0, 1.0, 1e9, *[1.0] * 20])
    w = nn.Parameter(torch.ones(3))
    opt = AdaQN([w], lr=0.1, preset="paper", cycle_length=2, averaging=0.0, monitor=lambda: next(losses))
    stepped(opt, w, 2)
    with opt.averaged():
        pass
    stepped(opt, w, 4)
    assert opt.stats.rejected == 1
    with opt.averaged():
        assert torch.equal(w, kept(opt, "anchor"))


def test_averages_are_not_entered_twice():
    w = nn.Parameter(torch.ones(2))
    opt = quiet([w], cycle_length=1, averaging=4.0)
    stepped(opt, w, 3)
    assert opt.averaging == 4.0
    with opt.averaged(), pytest.raises(RuntimeError, match=r"eval\(\) was called inside averaged\(\)"):
        opt.eval()


# ---------------------------------------------------------------------- parameters


def test_where_nothing_is_trained_nothing_is_kept():
    w = nn.Parameter(torch.ones(2), requires_grad=False)
    opt = quiet([w])
    assert opt.state_size() == 0
    source = torch.optim.Adagrad([nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        opt.warm_start(source.state_dict())


def test_a_warm_start_takes_what_there_is_and_refuses_other_shapes():
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    source = torch.optim.Adam(params)
    params[0].grad = torch.full((2,), 2.0)
    source.step()
    opt = quiet(params, scaling="adam")
    opt.warm_start(source)
    torch.testing.assert_close(kept(opt, "scaling_square_avg"), torch.tensor([0.004, 0.004, 0.0, 0.0, 0.0]))
    others = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(3))]
    with pytest.raises(ValueError, match=r"of shape \(2,\) for parameter 0, whose shape is \(4,\)"):
        quiet(others, scaling="adam").warm_start(source.state_dict())


# ---------------------------------------------------------------------- methods


def test_the_family_takes_either_recursion():
    ends = []
    for direction in ("gram", "two_loop"):
        w = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
        opt = OLBFGS([w], lr=0.5, direction=direction)

        def closure(w=w, opt=opt):
            opt.zero_grad()
            loss = (torch.tensor([1.0, 10.0]) * w**2).sum()
            loss.backward()
            return loss

        for _ in range(10):
            opt.step(closure)
        ends.append(w.detach())
    torch.testing.assert_close(ends[0], ends[1])


def test_pairs_of_every_step_need_cycles_of_one():
    with pytest.raises(ValueError, match="a pair from every step needs cycle_length=1, got 3"):
        Method(Judge(test=None, patience=3), cycle_length=3, pair_every_step=True)


def test_a_curvature_of_a_model_without_a_product_says_what_to_override():
    model = nn.Linear(2, 1)
    curvature = BatchCurvature(model, nn.MSELoss(), [(torch.ones(4, 2), torch.ones(4, 1))])
    with pytest.raises(TypeError, match=r"BatchCurvature has no product with s: override along\(\)"):
        curvature.along(lambda w: w[0].sum(), [torch.ones(2)], [torch.ones(2)], None)


# ---------------------------------------------------------------------- flat options of 0.1


def test_flat_options_become_todays_arguments():
    made = from_flat({"preset": "modern", "scaling_eps": 0.5, "fisher_batch_size": 4, "cycle_length": "auto"})
    assert made["scaling"].eps == 0.5
    assert made["pairs"].curvature.batch_size == 4
    assert made["cycle_length"] == (2, 20)


@pytest.mark.parametrize("scaling, said", [("x", "scaling must be one of"), ("identity", "has no meaning")])
def test_an_eps_needs_an_h0_that_has_one(scaling, said):
    with pytest.raises(ValueError, match=said):
        from_flat({"scaling_eps": 0.5, "scaling": scaling})


def test_a_removed_device_is_written_as_one_would_type_it():
    with pytest.raises(TypeError, match=r"StorageOptions\(fisher_device='cpu'\)"):
        AdaQN([nn.Parameter(torch.ones(2))], fisher_device=torch.device("cpu"))
    AdaQN([nn.Parameter(torch.ones(2))], storage=StorageOptions(fisher_device="cpu"))


# ---------------------------------------------------------------------- monitors


def test_a_monitor_that_has_no_next_set_is_an_error_and_changes_nothing():
    class Over:
        def __call__(self):
            return 1.0

        def advance(self):
            raise StopIteration("no more sets")

    w = nn.Parameter(torch.ones(2))
    opt = AdaQN([w], lr=0.1, preset="paper", cycle_length=2, monitor=Over())
    with pytest.raises(Exception, match="no more sets"):
        stepped(opt, w, 2)
    assert opt.stats.cycles == 0


def test_a_first_average_with_a_loss_is_better_than_weights_without_one():
    """Where the first cycle is judged too, weights whose loss is not finite cannot reject it."""
    w = nn.Parameter(torch.full((2,), 3.0))

    def loss():
        return torch.stack([w.sum()] * 4) if bool((w < 2.9).all()) else torch.full((4,), torch.inf)

    opt = AdaQN([w], lr=0.5, preset="modern", cycle_length=2, monitor=loss, warm_up=0)
    stepped(opt, w, 2)
    assert (opt.stats.cycles, opt.stats.rejected) == (1, 0)
