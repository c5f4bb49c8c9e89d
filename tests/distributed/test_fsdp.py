"""FSDP2: state in the shards, two reductions a step, and the numbers of one process."""

import problem
import pytest
import torch
import torch.distributed as dist
from counting import counted
from processes import run_processes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from adaqn import AdaQN, EmpiricalFisher, Kronecker, PairOptions, RejectOptions, Scaling, StorageOptions

STEPS, MANY = 100, 200
"""Enough for cycles of each kind: FSDP2 takes ten times as long for a step as one process."""


@pytest.mark.parametrize(
    "count, names, steps",
    [
        (2, ("paper", "modern", "kronecker"), STEPS),
        (4, ("modern",), STEPS),
        pytest.param(2, ("kronecker",), MANY, marks=pytest.mark.slow),
        pytest.param(4, ("kronecker",), MANY, marks=pytest.mark.slow),
    ],
)
def test_the_numbers_are_those_of_one_process(count, names, steps):
    """Five rows on two processes are uneven shards; on four one process holds nothing of any parameter.

    With a Kronecker H0 it is one process in which the rows of each shard are blocks.
    """
    found = run_processes(count, problem.several, "fsdp", names, steps)
    for name in names:
        blocks = {"scaling": problem.row_blocks(Kronecker, count)} if name == "kronecker" else {}
        problem.assert_same_run([each[name] for each in found], problem.outcomes(None, name, steps, **blocks))


def collectives_per_step(preset, count):
    net = problem.wrapped(problem.model(), "fsdp")
    pairs = PairOptions(memory_size=count)
    opt = AdaQN(net.parameters(), 0.05, preset=preset, reject="none", cycle_length=5, pairs=pairs)
    problem.train(net, opt, 22)
    assert opt.stats.pairs == count
    x, target = problem.share(problem.data(22, problem.BATCH))
    problem.per_example(net(x), target).mean().backward()
    with counted() as calls:
        opt.step()
    return calls


@pytest.mark.parametrize("preset", ["modern", "kronecker"])
def test_two_reductions_of_a_few_numbers_per_step_and_one_without_pairs(preset):
    for calls in run_processes(2, collectives_per_step, preset, 3):
        assert calls == [("all_reduce", 8 * (3 + 1)), ("all_reduce", 8 * 3)]
    for calls in run_processes(2, collectives_per_step, preset, 0):
        assert calls == [("all_reduce", 8)]


def cycles_with_and_without_a_monitor():
    """The outputs of training forward passes right after the end of each cycle."""
    found = []
    for is_monitored in (True, False):
        net = problem.wrapped(problem.model(), "fsdp")
        reject = RejectOptions(lambda new, old: False, growth=1.0) if is_monitored else "none"
        opt = problem.monitored(net, net.parameters(), "modern", lr=0.01, cycle_length=2, reject=reject)
        if not is_monitored:
            opt.monitor = None
        outputs = []
        for k in range(7):
            opt.zero_grad()
            x, target = problem.share(problem.data(k, problem.BATCH))
            output = net(x)
            outputs.append(output.detach())
            problem.per_example(output, target).mean().backward()
            if k == 3 and is_monitored:
                with torch.no_grad():  # whole weights stay behind after such an evaluation; the monitor drops them
                    net(x)
            opt.step()
            assert all(hasattr(p, "placements") for p in net.parameters()) or not is_monitored
        found.append(torch.stack(outputs))
    return found


def test_the_forward_pass_after_a_monitor_equals_one_without():
    for with_monitor, without in run_processes(2, cycles_with_and_without_a_monitor):
        assert torch.equal(with_monitor, without)


def averaged_weights(**options):
    net = problem.wrapped(problem.model(), "fsdp") if dist.is_initialized() else problem.model()
    opt = problem.monitored(net, net.parameters(), "kronecker", lr=0.05, **options)
    problem.train(net, opt, 11)
    x = problem.data(0, 4)[0]
    with torch.no_grad():
        with opt.averaged():
            average = net(x)
        return average, net(x)


def test_averaged_weights():
    expected = averaged_weights(scaling=problem.row_blocks(Kronecker, 2))
    assert not torch.allclose(*expected)
    for found in run_processes(2, averaged_weights):
        assert all(torch.allclose(a, b, rtol=0.0, atol=1e-10) for a, b in zip(found, expected, strict=True))


def grouped(kind, name="kronecker", **options):
    net = problem.wrapped(problem.model(), kind)
    groups = [
        {"params": [p for p in net.parameters() if p.dim() == 2], "lr": 0.02, "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.dim() == 1], "lr": 0.1},
    ]
    opt = problem.monitored(net, groups, name, maximize=True, reject="none", **options)
    return problem.train(net, opt, 30)


def test_groups_weight_decay_and_maximize():
    expected = grouped(None, scaling=problem.row_blocks(Kronecker, 2))
    for path in run_processes(2, grouped, "fsdp"):
        assert torch.allclose(path, expected, rtol=0.0, atol=1e-9)


def mixed_precision():
    net = problem.model(torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = fully_shard(net, mp_policy=policy)
    opt = problem.monitored(net, net.parameters(), "kronecker", lr=0.02, dtype=torch.float32)
    losses = []
    for k in range(30):
        for half in range(2):  # gradients are added up over two batches, and exchanged with the second
            net.set_requires_gradient_sync(half == 1)
            x, target = problem.share(problem.data(2 * k + half, problem.BATCH, torch.float32))
            loss = problem.per_example(net(x).float(), target).mean() / 2
            loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(float(loss))
    assert opt.state[next(iter(opt.param_groups[0]["params"]))]["pairs_s"].dtype == torch.float32
    return losses, opt.stats


def test_mixed_precision_and_accumulated_gradients():
    (losses, stats), (_, other) = run_processes(2, mixed_precision)
    assert stats == other
    assert stats.stored > 0
    assert sum(losses[-5:]) < sum(losses[:5])


def master_weights():
    net = fully_shard(problem.model(torch.bfloat16))
    opt = problem.monitored(
        net, net.parameters(), "kronecker", lr=0.02, storage=StorageOptions(master_weights=True), dtype=torch.bfloat16
    )
    return problem.train(net, opt, 20, dtype=torch.bfloat16), opt.state_size()


def test_low_precision_parameters_with_master_weights():
    (path, size), (other, other_size) = run_processes(2, master_weights)
    assert torch.equal(path, other)
    assert not torch.equal(path[0], path[-1])
    assert size > other_size  # three rows of five, and two


def hybrid_mesh():
    """Sharded over two processes, and that twice."""
    net = fully_shard(problem.model(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))
    opt = problem.monitored(net, net.parameters(), "kronecker")
    return problem.train(net, opt, 40, poisoned=(20,)), opt.stats


def test_a_mesh_of_copies_of_shards():
    plain = problem.model()
    opt = problem.monitored(plain, plain.parameters(), "kronecker", scaling=problem.row_blocks(Kronecker, 2))
    expected = problem.train(plain, opt, 40, poisoned=(20,))
    for path, stats in run_processes(4, hybrid_mesh):
        assert torch.allclose(path, expected, rtol=0.0, atol=1e-9)
        assert stats.stored == opt.stats.stored > 0


class Mixing(Scaling):
    """An H0 of whole matrices that does not say which blocks it has."""

    elementwise = False


def refusals():
    net = problem.wrapped(problem.model(), "fsdp")
    plain, messages = problem.model(), []
    x, target = problem.share(problem.data(0, problem.BATCH))
    problem.per_example(net(x), target).mean().backward()
    fisher = EmpiricalFisher(net, problem.per_example, [(x, target)])
    for options in (
        {"scaling": Mixing()},
        {"preset": "modern", "pairs": PairOptions(curvature=fisher)},
        {"preset": "modern", "storage": problem.SHARDED},
        {"preset": "modern", "process_group": "none"},
        {"preset": "modern", "monitor": lambda: 1.0, "cycle_length": 1, "reject": RejectOptions("factor", window=0)},
    ):
        try:
            AdaQN(net.parameters(), 0.1, **{"reject": "factor", **options}).step()
            messages.append("no error")
        except (ValueError, RuntimeError) as error:
            messages.append(str(error))
    try:
        AdaQN([*net.parameters(), *plain.parameters()], 0.1, preset="modern").step()
    except ValueError as error:
        messages.append(str(error))
    return messages


def test_what_cannot_be_sharded_is_refused_by_name():
    for messages in run_processes(2, refusals):
        for message, words in zip(
            messages,
            (
                "scaling='kronecker' or 'adam'",
                "EmpiricalFisher",
                "sharded already",
                "leave it out",
                "attribute `model`",
                "4 of 8",
            ),
            strict=True,
        ):
            assert words in message


def warm_started(kind):
    net = problem.wrapped(problem.model(), kind)
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    problem.train(net, adam, 5)
    opt = problem.monitored(net, net.parameters(), "modern")
    opt.warm_start(adam)
    return problem.train(net, opt, 10, start=5)


def test_a_run_of_adam_can_switch():
    expected = warm_started(None)
    for path in run_processes(2, warm_started, "fsdp"):
        assert torch.allclose(path, expected, rtol=0.0, atol=1e-9)


def vanishing_weights():
    """D13: weights that are lost in one process only, and return to the anchor in all."""
    net = problem.wrapped(problem.model(), "fsdp")
    opt = problem.monitored(net, net.parameters(), "modern")
    problem.train(net, opt, 9)
    if dist.get_rank() == 1:
        with torch.no_grad():
            opt.param_groups[0]["params"][0].to_local().fill_(torch.nan)
    cycles = opt.stats.cycles
    while opt.stats.cycles == cycles:  # it shows at the end of the cycle
        problem.train(net, opt, 1, start=9)
    return opt.stats, problem.vector(opt.param_groups[0]["params"])


def test_weights_lost_in_one_process_return_to_the_anchor_in_all():
    (stats, weights), (other, _) = run_processes(2, vanishing_weights)
    assert stats == other
    assert stats.nonfinite > 0
    assert stats.rejected > 0
    assert weights.isfinite().all()
