"""AdaQN on a Kronecker H0, and on a scaling of the user's own: steps, state and misuse."""

import copy
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import inside
from adaqn import Adagrad, AdaQN, Kronecker, PairOptions, RejectOptions, Scaling
from oracles import (
    NO_PAIRS,
    SMALL,
    NoisyValley,
    Vector,
    dense_bfgs,
    dense_kronecker,
    quiet,
    relative_error,
    run,
    with_history,
)
from scripted import follow

OLD_STATE = Path(__file__).parents[1] / "data" / "state_format_1.pt"


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class PlainSOAP:
    """SOAP without momentum for one matrix, written for reading, with the refreshment of one side after the other's."""

    def __init__(self, W, lr, beta, eps, frequency, later=0, *, starts_anew=True):
        self.W, self.lr, self.beta, self.eps, self.frequency = W.clone(), lr, beta, eps, frequency
        self.later, self.starts_anew = later, starts_anew
        self.L, self.R = W.new_zeros(len(W), len(W)), W.new_zeros(W.shape[1], W.shape[1])
        self.V, self.t = torch.zeros_like(W), -1

    def step(self, G):
        self.t += 1
        if self.t > 0:
            rotated = self.QL.T @ G @ self.QR
            self.V = self.beta * self.V + (1 - self.beta) * rotated**2
            corrected = self.V / (1 - self.beta ** (self.t + (not self.starts_anew)))
            self.W -= self.lr * self.QL @ (rotated / (corrected.sqrt() + self.eps)) @ self.QR.T
        self.L = self.beta * self.L + (1 - self.beta) * G @ G.T
        self.R = self.beta * self.R + (1 - self.beta) * G.T @ G
        if self.t == 0:
            self.QL, self.QR = (torch.linalg.eigh(A).eigenvectors.flip(1) for A in (self.L, self.R))
            if not self.starts_anew:
                self.V = (1 - self.beta) * (self.QL**2).T @ G**2 @ self.QR**2
            return
        if self.t % self.frequency == 0:
            order = torch.argsort((self.QL.T @ self.L @ self.QL).diagonal(), descending=True)
            self.QL = torch.linalg.qr(self.L @ self.QL[:, order]).Q
            self.V = self.V[order]
        if self.t % self.frequency == self.later:
            order = torch.argsort((self.QR.T @ self.R @ self.QR).diagonal(), descending=True)
            self.QR = torch.linalg.qr(self.R @ self.QR[:, order]).Q
            self.V = self.V[:, order]


class AsSOAP(Kronecker):
    """Forgets its first gradient, as SOAP does, which has it in no average at all."""

    starts_anew = True


@pytest.mark.parametrize("kind", [Kronecker, AsSOAP])
@pytest.mark.parametrize("refresh, later", [(1, 0), (4, 2)])
def test_without_pairs_it_is_soap_without_momentum(refresh, later, kind):
    """Of which the first gradient makes no step; ours is Adam's there, and V goes along into the first basis (D31)."""
    W = torch.randn(5, 4, dtype=torch.float64)
    soap = PlainSOAP(W, lr=0.01, beta=0.9, eps=1e-8, frequency=refresh, later=later, starts_anew=kind is AsSOAP)
    w = nn.Parameter(W.clone())
    opt = quiet([w], lr=0.0, scaling=kind(0.9, refresh=refresh), pairs=NO_PAIRS)
    for _ in range(40):
        G = torch.randn(5, 4, dtype=torch.float64) + soap.W
        soap.step(G)
        w.grad = G.clone()
        opt.step()
        opt.param_groups[0]["lr"] = 0.01
        torch.testing.assert_close(w.detach(), soap.W, rtol=1e-5, atol=1e-5)  # D22 shifts L and R by 1e-6
    assert opt.stats.stored == 0


def test_the_first_step_is_adams():
    w, G = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64)), torch.randn(3, 2, dtype=torch.float64)
    opt = quiet([w], lr=0.1, scaling="kronecker")
    w.grad = G.clone()
    opt.step()
    torch.testing.assert_close(w.detach(), -0.1 * G.sign(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_the_second_batch_does_not_have_are_not_thrown_away(dtype):
    """An embedding: momentum remembers the first gradient there, and V must too."""
    torch.manual_seed(0)
    table = nn.Embedding(50, 8, dtype=dtype)
    before = table.weight.detach().clone()
    opt = AdaQN(table.parameters(), lr=0.01, reject="none", warm_up=0)
    for words in (torch.arange(20), torch.arange(20, 40), torch.arange(20, 40), torch.arange(40, 50)):
        opt.zero_grad()
        (table(words) - torch.randn(len(words), 8, dtype=dtype)).square().sum().backward()
        opt.step()
    moved = (table.weight.detach() - before).abs().amax(1)
    assert float(moved[:20].max()) < 4 * 4 * 0.01
    assert float(moved[:20].min()) > 0.0


def test_it_is_the_soap_that_people_use():
    """An implementation of others, whose bases are float32, with all of them refreshed at each step: five digits."""
    SOAP = pytest.importorskip("pytorch_optimizer").SOAP
    start = torch.randn(4, 3, dtype=torch.float64)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    soap = SOAP([theirs], lr=0.01, betas=(0.0, 0.95), weight_decay=0.0, eps=1e-12, precondition_frequency=1)
    opt = quiet([ours], lr=0.0, scaling=AsSOAP(eps=1e-12, refresh=1), pairs=NO_PAIRS)
    for _ in range(25):
        ours.grad = torch.randn(4, 3, dtype=torch.float64) + ours.detach()
        theirs.grad = ours.grad.clone()
        opt.step()
        soap.step()
        opt.param_groups[0]["lr"] = 0.01
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-4, atol=1e-4)
    assert (ours.detach() - start).norm() > 0.1


@pytest.mark.parametrize("direction", ["gram", "two_loop"])
@pytest.mark.parametrize("steps", [15, 22, 23, 31])
def test_with_pairs_h_is_dense_bfgs_on_h0(direction, steps):
    problem = NoisyValley(18)
    pairs = replace(SMALL, direction=direction)
    opt = with_history(Vector(problem.w0), problem, steps, lr=0.01, scaling=Kronecker(refresh=4), pairs=pairs)
    stored = inside.pairs(opt)
    H = dense_bfgs([s for s, _ in stored], [y for _, y in stored], dense_kronecker(opt.scaling))
    g = torch.randn(18, dtype=torch.float64)
    assert relative_error(inside.direction(opt, g), H @ g) < 1e-9
    assert torch.linalg.eigvalsh((H + H.T) / 2).min() > 0


@pytest.mark.parametrize("pairs", [NO_PAIRS, PairOptions(memory_size=4, test="scale_free")], ids=["h0", "pairs"])
def test_rounding_does_not_move_weights_where_no_gradient_is(pairs):
    """Gradients of rank two: in float32 their rotated rounding errors must not become steps."""
    drift = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        W, x = nn.Parameter(torch.randn(12, 9).to(dtype)), torch.randn(9, 2).to(dtype)
        start = W.detach().clone()
        opt = quiet([W], lr=0.01, cycle_length=3, scaling=Kronecker(refresh=3), pairs=pairs)
        for _ in range(120):
            opt.zero_grad()
            (W @ x).square().mean().backward()
            opt.step()
        moved, Q = W.detach() - start, torch.linalg.qr(x).Q
        drift.append(float((moved - moved @ Q @ Q.T).norm()))  # gradients lie in the span of x, but Adam's first step
    assert (opt.stats.stored > 5) == (pairs is not NO_PAIRS)
    assert drift[1] < 1.1 * drift[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_state_of_narrow_and_complex_parameters_is_float32(dtype):
    w = nn.Parameter(
        torch.randn(4, 3, dtype=torch.complex64).to(dtype) if dtype.is_complex else torch.randn(4, 3).to(dtype)
    )
    opt = quiet([w], scaling="kronecker")
    for _ in range(12):
        w.grad = torch.randn_like(w)
        opt.step()
    state = opt.state[w]
    assert state["scaling_left_basis"].dtype == torch.float32
    assert state["scaling_right_basis"].shape == ((6, 6) if dtype.is_complex else (3, 3))
    assert torch.view_as_real(w.detach()).isfinite().all() if dtype.is_complex else w.isfinite().all()


def test_a_step_inside_autocast_is_not_rounded():
    paths = []
    for enabled in (False, True):
        torch.manual_seed(0)
        w = nn.Parameter(torch.randn(6, 5))
        opt = quiet([w], lr=0.01, scaling=Kronecker(refresh=2), pairs=NO_PAIRS)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for _ in range(9):
                w.grad = torch.randn(6, 5)
                opt.step()
        paths.append(w.detach().clone())
    assert torch.equal(*paths)


def test_a_nonfinite_gradient_touches_nothing():
    """But the count of all gradients, by which bases are due; none is here (D9)."""
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem, lr=0.01, scaling=Kronecker(refresh=100))
    before = copy.deepcopy(opt.state_dict()["state"])
    model.set_gradient(torch.full((12,), math.nan))
    opt.step()
    for index, entry in opt.state_dict()["state"].items():
        assert entry["scaling_seen"] == before[index]["scaling_seen"] + 1
        for name in (name for name in entry if name.startswith("scaling_") and name != "scaling_seen"):
            assert torch.equal(torch.as_tensor(entry[name]), torch.as_tensor(before[index][name])), name
    assert opt.stats.nonfinite == 1


def test_a_rejection_may_reset_h0():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = quiet(
        model.parameters(), lr=0.01, cycle_length=3, scaling=Kronecker(refresh=2),
        reject=RejectOptions(test="factor", reset_scaling=True),
    )  # fmt: skip
    follow(opt, 1.0, 1.0, 1.0, 9.0)
    while not opt.stats.rejected:
        run(opt, model, problem, range(opt.stats.steps, opt.stats.steps + 1))
    state = opt.state[model.pieces[2]]
    assert torch.equal(state["scaling_right_basis"], torch.eye(3, dtype=torch.float64))
    assert not state["scaling_right_average"].any()
    assert opt.state_dict()["state"][2]["scaling_seen"] == 0


# ---------------------------------------------------------------------- state


def test_matrices_are_saved_by_parameter_and_vectors_have_none():
    problem = NoisyValley()
    opt = with_history(Vector(problem.w0), problem, lr=0.01, scaling=Kronecker(refresh=4))
    state = saved_and_loaded(opt.state_dict())["state"]
    assert state[2]["scaling_left_basis"].shape == (2, 2)
    assert state[2]["scaling_right_average"].shape == (3, 3)
    assert not [name for name in state[1] if "basis" in name]
    assert (state[1]["scaling_seen"], state[1]["scaling_step"], state[2]["scaling_step"]) == (23, 23, 23)


def test_a_state_with_other_sides_is_refused_and_nothing_changes():
    problem = NoisyValley()
    wide = with_history(Vector(problem.w0), problem, lr=0.01, scaling=Kronecker())
    model = Vector(problem.w0)
    narrow = with_history(model, problem, lr=0.01, scaling=Kronecker(block_size=2))
    before = copy.deepcopy(narrow.state_dict())
    with pytest.raises(ValueError, match=r"'scaling_\w+' of parameter 2 has shape \(\d, \d\).*\(\d,\)"):
        narrow.load_state_dict(wide.state_dict())
    damaged = copy.deepcopy(before)
    damaged["state"][2]["scaling_left_basis"] = torch.eye(3)
    with pytest.raises(ValueError, match=r"'scaling_left_basis' of parameter 2 has shape \(3, 3\).*\(8,\)"):
        narrow.load_state_dict(damaged)
    now = narrow.state_dict()["state"][2]
    assert all(torch.equal(now[k], v) for k, v in before["state"][2].items() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("theirs, ours", [(16, 8), (8, 16), (8, 4), (16, 4)])
def test_bases_of_as_many_numbers_in_other_blocks_are_refused_and_nothing_changes(theirs, ours):
    """Rows and columns cut into the same number of blocks have as many numbers in their bases as before."""

    def made(block_size):
        torch.manual_seed(0)
        w = nn.Parameter(torch.ones(16, 16))
        opt = quiet([w], scaling=Kronecker(block_size=block_size))
        for _ in range(6):
            w.grad = torch.randn(16, 16)
            opt.step()
        return opt

    saved, opt = made(theirs).state_dict(), made(ours)
    before = copy.deepcopy(opt.state_dict()["state"][0])
    with pytest.raises(ValueError, match="block_size"):
        opt.load_state_dict(saved)
    now = opt.state_dict()["state"][0]
    assert all(torch.equal(now[name], value) for name, value in before.items() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("scaling", ["adagrad", "adam", "barzilai_borwein"])
def test_a_state_that_was_saved_before_scalings_had_matrices_still_loads(scaling):
    old = torch.load(OLD_STATE, weights_only=True)[scaling]
    problem = NoisyValley()
    model = Vector(old["weights"])
    opt = quiet(model.parameters(), lr=0.01, cycle_length=3, pairs=SMALL, scaling=scaling)
    opt.load_state_dict(old["optimizer"])
    assert opt.stats.steps == 23
    torch.testing.assert_close(run(opt, model, problem, range(23, 40))[-1], old["later"], rtol=1e-9, atol=1e-9)


def test_state_size_is_known_before_the_first_step():
    w = nn.Parameter(torch.randn(30, 20))
    sizes = [quiet([w], scaling=s).state_size() for s in ("adam", "kronecker", Kronecker(block_size=25))]
    assert sizes[1] - sizes[0] == 4 * 2 * (30**2 + 20**2)
    assert sizes[2] - sizes[0] == 4 * 2 * 2 * (15**2 + 20**2), "two blocks of 15 × 20"


def test_unfreezing_keeps_the_bases_of_those_that_stay():
    a, b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3, 2), requires_grad=False)
    opt = quiet([b, a], lr=0.01, scaling=Kronecker(refresh=3))

    def steps(count):
        for _ in range(count):
            for p in (a, b):
                p.grad = torch.randn_like(p) if p.requires_grad else None
            opt.step()

    steps(8)
    known = {name: opt.state[a][f"scaling_{name}"].clone() for name in ("left_basis", "right_basis")}
    b.requires_grad_(True)
    with pytest.warns(UserWarning, match="restarts"):
        steps(1)
    for name, Q in known.items():
        assert torch.equal(opt.state[a][f"scaling_{name}"], Q)
        assert torch.equal(opt.state[b][f"scaling_{name}"], torch.eye(len(opt.state[b][f"scaling_{name}"])))
    numbers = opt.state_dict()["state"]
    assert (numbers[0]["scaling_seen"], numbers[1]["scaling_seen"]) == (1, 9)


def test_warm_start_says_why_it_cannot():
    model = Vector(torch.ones(12))
    model.set_gradient(torch.ones(12))
    adam = torch.optim.Adam(model.parameters())
    adam.step()
    with pytest.raises(ValueError, match=r"scaling='kronecker' for combinations.*use scaling='adam'"):
        quiet(model.parameters(), scaling="kronecker").warm_start(adam)


# ---------------------------------------------------------------------- a scaling of one's own


class RowAdagrad(Scaling):
    """1/√(Σ‖row‖²): one number per row, and a count that it keeps per parameter."""

    number_names = ("seen",)
    initial_value = 1e-4

    def tensor_shapes(self, shape):
        return {"rows": (shape[0], 1)} if len(shape) == 2 else {"whole": (1,)}

    def reset(self):
        super().reset()
        self.seen = [0] * len(self.shapes)

    def update(self, g):
        for i, part in enumerate(g.split(self.sizes)):
            (total,) = self.tensors[i].values()
            total += part.view(len(total), -1).square().sum(1, keepdim=True).view_as(total)
            self.seen[i] += 1

    def apply(self, v, out):
        for i, (part, target) in enumerate(zip(v.split(self.sizes), out.split(self.sizes), strict=True)):
            (total,) = self.tensors[i].values()
            target.view(len(total), -1).copy_(part.view(len(total), -1) * total.view(-1, 1).rsqrt())
        return out

    def numbers(self, index):
        return {"seen": self.seen[index]}

    def load_numbers(self, index, numbers):
        self.seen[index] = int(numbers["seen"])


@pytest.mark.parametrize("stop", [13, 14])
def test_a_scaling_of_ones_own_is_saved_copied_and_resumed_bit_for_bit(stop):
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem, stop, scaling=RowAdagrad())
    copied_model, copied = copy.deepcopy((model, opt))
    resumed = Vector(model.vector())
    other = quiet(resumed.parameters(), cycle_length=3, pairs=SMALL, scaling=RowAdagrad())
    other.load_state_dict(saved_and_loaded(opt.state_dict()))
    assert opt.state_dict()["state"][2]["scaling_rows"].shape == (2, 1)
    expected = run(opt, model, problem, range(stop, 30))
    assert torch.equal(run(other, resumed, problem, range(stop, 30)), expected)
    assert torch.equal(run(copied, copied_model, problem, range(stop, 30)), expected)


def test_a_scaling_of_ones_own_does_not_age_without_gradients():
    problem = NoisyValley()
    model = Vector(problem.w0)
    opt = with_history(model, problem, scaling=RowAdagrad())
    before = opt.state[model.pieces[2]]["scaling_rows"].clone()
    model.set_gradient(torch.ones(12))
    model.pieces[2].grad = None
    opt.step()
    assert torch.equal(opt.state[model.pieces[2]]["scaling_rows"], before)
    assert [opt.state_dict()["state"][i]["scaling_seen"] for i in range(3)] == [24, 24, 23]


@pytest.mark.parametrize("direction", ["gram", "two_loop"])
def test_a_scaling_of_ones_own_may_return_a_tensor_of_its_own(direction):
    class Written(Scaling):
        def apply(self, v, out):
            return torch.mul(v, 0.5, out=out)

    class Returned(Scaling):
        def apply(self, v, out):
            return v * 0.5

    problem = NoisyValley()
    paths = []
    for scaling in (Written(), Returned()):
        model = Vector(problem.w0)
        opt = quiet(model.parameters(), scaling=scaling, pairs=PairOptions(direction=direction), cycle_length=3)
        paths.append(run(opt, model, problem, range(30)))
        assert opt.stats.stored > 0
    assert torch.equal(*paths)


def test_mistakes_in_a_scaling_of_ones_own_are_named():
    class Text(Adagrad):
        vector_names = "sum"

    class Twice(Adagrad):
        def tensor_shapes(self, shape):
            return {"sum": (2,)}

    class Forgets(Scaling):
        def apply(self, v, out):
            out.copy_(v)

    class Shorter(Scaling):
        def apply(self, v, out):
            return v[:1]

    w = nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match="vector_names of Text must be a tuple of names"):
        quiet([w], scaling=Text())
    w.grad = torch.ones(2)
    with pytest.raises(TypeError, match=r"Forgets\.apply.*a vector of 2 numbers, and returned None: .*return out"):
        quiet([w], scaling=Forgets()).step()
    with pytest.raises(TypeError, match=r"Shorter\.apply.*returned a tensor of shape \(1,\)"):
        quiet([w], scaling=Shorter()).step()
    assert torch.equal(w.detach(), torch.ones(2))
    with pytest.raises(ValueError, match=r"Twice has a tensor and a vector or number of the same name: \['sum'\]"):
        quiet([w], scaling=Twice()).step()
