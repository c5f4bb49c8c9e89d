"""What every optimizer of the table must do; modelled on torch's own OptimizerInfo tests."""

import copy
import gc
import io
import pickle

import pytest
import torch

import inside
from adaqn.core.pairs import TowardsH0
from optim.table import OPTIMIZERS, OptimizerInfo
from oracles import NoisyValley, Vector, relative_error, run, take_step

EVERY = pytest.mark.parametrize("info", OPTIMIZERS, ids=lambda info: info.name)


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def twin(model: Vector, dtype=torch.float64) -> Vector:
    return Vector(model.vector()).to(dtype)


@EVERY
def test_goes_in_the_right_direction(info: OptimizerInfo):
    problem = NoisyValley(noise=0.05)
    model = Vector(problem.w0)
    protected = {"reject": "factor", "monitor": lambda: problem.loss(model.vector())}
    run(info(model.parameters(), **(protected if info.monitored else {})), model, problem, range(200))
    assert problem.loss(model.vector()) < problem.loss(problem.w0) - 0.5


@EVERY
def test_stored_pairs_curve_upwards_and_change_the_step(info: OptimizerInfo):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = info(model.parameters())
    run(opt, model, problem, range(30))
    pairs = inside.pairs(opt)
    if inside.method(opt).memory_size == 0:
        assert len(pairs) == opt.stats.pairs == opt.stats.stored == 0
        return
    assert len(pairs) == opt.stats.pairs >= 3
    assert all(s.double() @ y.double() > 0 for s, y in pairs)
    g = problem.gradient(model.vector(), 30)
    if info.name != "sqn":  # whose Hessian is the identity here, as its H0
        assert relative_error(inside.direction(opt, g), opt.scaling.apply(g, out=torch.empty_like(g))) > 0.01


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_resume_is_bit_for_bit_at_every_step_of_a_cycle(info: OptimizerInfo, dtype):
    problem, end, saved, path = NoisyValley(), 28, {}, []
    model = Vector(problem.w0).to(dtype)
    opt = info(model.parameters())
    for k in range(end):
        if 13 <= k < 17:
            saved[k] = saved_and_loaded(model.state_dict()), saved_and_loaded(opt.state_dict()), opt.stats
        path.append(run(opt, model, problem, range(k, k + 1)))
    for stop, (weights, state, stats) in saved.items():
        resumed = Vector(problem.w0).to(dtype)
        resumed.load_state_dict(weights)
        other = info(resumed.parameters())
        other.load_state_dict(state)
        assert other.stats == stats
        assert torch.equal(run(other, resumed, problem, range(stop, end)), torch.cat(path[stop:]))
        assert other.stats == opt.stats


@EVERY
def test_state_dict_round_trip_keeps_every_tensor_and_number(info: OptimizerInfo):
    problem = NoisyValley()
    model = Vector(problem.w0).to(torch.bfloat16)
    opt = info(model.parameters())
    run(opt, model, problem, range(14))
    other = info(twin(model, torch.bfloat16).parameters())
    other.load_state_dict(saved_and_loaded(opt.state_dict()))
    before, after = opt.state_dict()["state"], other.state_dict()["state"]
    assert before.keys() == after.keys()
    for index, entry in before.items():
        assert entry.keys() == after[index].keys()
        for name, value in entry.items():
            again = after[index][name]
            if isinstance(value, torch.Tensor):
                assert (value.dtype, value.device) == (again.dtype, again.device), name
                assert torch.equal(value, again), name
            else:
                assert type(value) is type(again), name
                assert value == again, name


@EVERY
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_a_copy_goes_its_own_way_and_the_same_way(info: OptimizerInfo, copier):
    if info.name == "adaqn-monitored" and copier is not copy.deepcopy:
        info = OptimizerInfo(info.name, info.make, {**info.options, "monitor": float})  # a lambda has no pickle
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = info(model.parameters())
    run(opt, model, problem, range(14))
    other_model, other = copier((model, opt))
    expected = run(opt, model, problem, range(14, 31))
    assert torch.equal(run(other, other_model, problem, range(14, 31)), expected)
    for name in ("anchor", "window", "pairs_s"):  # its state shows its own vectors, and not those it was copied from
        assert torch.equal(inside.kept(other, name), inside.kept(opt, name))


@EVERY
def test_closure_runs_first_and_its_loss_comes_back(info: OptimizerInfo):
    model = Vector(torch.ones(12, dtype=torch.float64))
    opt = info(model.parameters())

    def closure():
        opt.zero_grad()
        loss = sum((p**2).sum() for p in model.pieces)
        loss.backward()
        return loss

    losses = [float(opt.step(closure).detach()) for _ in range(20)]
    assert losses[0] == 12.0
    assert losses[-1] < 12.0


@EVERY
def test_complex_parameters_are_pairs_of_reals(info: OptimizerInfo):
    z = torch.nn.Parameter(torch.randn(5, dtype=torch.complex128))
    x = torch.nn.Parameter(torch.view_as_real(z.detach()).clone())
    a, b = info([z]), info([x])

    def fill(noise):
        z.grad = torch.view_as_complex(noise + torch.view_as_real(z.detach()))
        x.grad = noise + x.detach()

    for _ in range(25):
        noise = torch.randn(5, 2, dtype=torch.float64)
        take_step(a, lambda noise=noise: fill(noise))
        take_step(b, lambda noise=noise: fill(noise))
    assert torch.equal(torch.view_as_real(z.detach()), x.detach())
    assert a.stats == b.stats


@EVERY
def test_missing_gradients_leave_their_parameters_as_they_are(info: OptimizerInfo):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = info(model.parameters())
    for k in range(30):

        def fill(k=k):
            model.set_gradient(problem.gradient(model.vector(), k))
            if k % 3 == 0:
                model.pieces[1].grad = None

        before, moved = model.pieces[1].detach().clone(), opt.stats.rejected
        take_step(opt, fill)
        if k % 3 == 0 and opt.stats.rejected == moved:
            assert torch.equal(model.pieces[1].detach(), before)
    assert model.vector().isfinite().all()


@EVERY
def test_no_gradients_at_all_is_no_step(info: OptimizerInfo):
    model = Vector(torch.ones(12))
    opt = info(model.parameters())
    take_step(opt, lambda: None)
    assert opt.stats.steps == 0
    assert torch.equal(model.vector(), torch.ones(12))


@EVERY
def test_zero_gradients_do_no_harm(info: OptimizerInfo):
    model = Vector(torch.ones(12))
    opt = info(model.parameters(), weight_decay=0.0)
    for _ in range(15):
        take_step(opt, lambda: model.set_gradient(torch.zeros(12)))
    assert torch.equal(model.vector(), torch.ones(12))
    assert opt.stats.steps == 15


@EVERY
def test_tensor_lr_is_the_number_it_holds(info: OptimizerInfo):
    problem = NoisyValley()
    number, tensor = Vector(problem.w0), Vector(problem.w0)
    lr = info.options["lr"]
    expected = run(info(number.parameters()), number, problem, range(30))
    opt = info(tensor.parameters(), lr=torch.tensor(lr, dtype=torch.float64))
    torch.testing.assert_close(run(opt, tensor, problem, range(30)), expected, rtol=1e-12, atol=1e-12)


@EVERY
def test_maximize_mirrors_minimize(info: OptimizerInfo):
    problem = NoisyValley()
    down, up = Vector(problem.w0), Vector(problem.w0)
    opt, mirrored = info(down.parameters()), info(up.parameters(), maximize=True)
    for k in range(30):
        take_step(opt, lambda k=k: down.set_gradient(problem.gradient(down.vector(), k)))
        take_step(mirrored, lambda k=k: up.set_gradient(-problem.gradient(up.vector(), k)))
    assert torch.equal(down.vector(), up.vector())


@EVERY
def test_state_is_as_large_as_announced(info: OptimizerInfo):
    model = Vector(torch.randn(4006))
    opt = info(model.parameters())
    announced = opt.state_size()
    run_on_noise(opt, model, 20)
    held = inside.held(opt)
    if isinstance(inside.method(opt).repair, TowardsH0) and inside.method(opt).memory_size:
        held.append(held[0])  # H0⁻¹s, while a pair is damped
    assert announced == sum(t.numel() * t.element_size() for t in held) == opt.state_size()


@EVERY
def test_lr_zero_changes_nothing_but_is_a_step(info: OptimizerInfo):
    """Warm-ups start at zero."""
    model = Vector(torch.ones(12))
    opt = info(model.parameters(), lr=0.0)
    run_on_noise(opt, model, 2)
    assert torch.equal(model.vector(), torch.ones(12))
    assert opt.stats.steps == 2


@pytest.mark.filterwarnings("ignore:50 cycles in a row")
@EVERY
def test_memory_stays_flat_and_no_graph_is_kept(info: OptimizerInfo):
    """150 steps on a model: no more tensors alive at the end than after the first cycles."""
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    opt = info(net.parameters())

    def alive():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    counts = []
    gc.freeze()  # what was there before need not be looked at
    for k in range(150):
        x = torch.randn(4, 5)

        def fill(x=x):
            opt.zero_grad()
            net(x).pow(2).mean().backward()

        take_step(opt, fill)
        if k in (40, 149):
            counts.append(alive())
    gc.unfreeze()
    assert 0 < counts[1] <= counts[0]
    assert all(t.grad_fn is None and not t.requires_grad for t in inside.buffers(opt).values())


def run_on_noise(opt, model, steps):
    for _ in range(steps):
        g = torch.randn(sum(p.numel() for p in model.pieces))
        take_step(opt, lambda g=g: model.set_gradient(g))
