"""What every method of the library must do, whatever its kind."""

import copy
import io

import pytest
import torch

import adaqn
from adaqn import baselines
from methods import METHODS, Method, network, total_loss

EVERY = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def trained(method: Method, steps):
    model = network()
    opt = method.make(model)
    for k in range(steps):
        method.advance(opt, model, k)
    return model, opt


def test_every_method_is_in_the_table():
    made = {type(method.make(network())) for method in METHODS}
    offered = [getattr(module, name) for module in (adaqn, baselines) for name in module.__all__]
    optimizers = {kind for kind in offered if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)}
    assert made == optimizers - {adaqn.QuasiNewton}  # what they have in common


@EVERY
def test_it_learns(method: Method):
    model, opt = trained(method, 60)
    assert total_loss(model) < 0.5 * total_loss(network())
    assert opt.stats.steps > 0


@EVERY
def test_it_says_in_one_line_what_it_needs(method: Method):
    needs = method.make(network()).needs
    assert 20 < len(needs) < 160
    assert "\n" not in needs


@EVERY
def test_it_resumes_bit_for_bit(method: Method):
    for stop in (1, 7, 8, 9, 10):
        model, opt = trained(method, stop)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        resumed = network()
        resumed.load_state_dict(saved["model"])
        other = method.make(resumed)
        other.load_state_dict(saved["optimizer"])
        for k in range(stop, stop + 12):
            method.advance(opt, model, k)
            method.advance(other, resumed, k)
        assert torch.equal(weights(model), weights(resumed))


@pytest.mark.filterwarnings("ignore:L?BFGS. the loss or the gradient is not finite")
@EVERY
def test_a_batch_with_a_nan_is_no_step(method: Method):
    model, opt = trained(method, 12)
    before, counted = weights(model), opt.stats.nonfinite
    method.advance(opt, model, 12, spoilt=True)
    assert torch.equal(weights(model), before)
    assert opt.stats.nonfinite == counted + 1
    for k in range(13, 60):
        method.advance(opt, model, k)
    assert weights(model).isfinite().all()
    assert total_loss(model) < total_loss(network())


@EVERY
def test_a_deep_copy_goes_the_same_way_on_its_own(method: Method):
    model, opt = trained(method, 11)
    other_model, other = copy.deepcopy((model, opt))
    for k in range(11, 20):
        method.advance(opt, model, k)
    before = weights(model)
    for k in range(11, 20):
        method.advance(other, other_model, k)
    assert torch.equal(weights(other_model), before)
    assert torch.equal(weights(model), before)


@EVERY
def test_a_scheduler_of_torch_sets_its_step_size(method: Method):
    model = network()
    opt = method.make(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: float(epoch == 0))
    for k in range(8):
        method.advance(opt, model, k)
    scheduler.step()
    before = weights(model)
    assert not torch.equal(before, weights(network()))
    for k in (8, 9):
        method.advance(opt, model, k)
    assert torch.equal(weights(model), before)
