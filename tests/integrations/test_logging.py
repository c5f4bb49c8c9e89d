"""What is told about each cycle, to a function and to TensorBoard."""

import copy
import math
import pickle
import subprocess
import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import inside
from adaqn import LBFGS, OLBFGS, AdaQN, Outcome, PairOptions
from adaqn.integrations.cycle_log import CycleLog
from adaqn.integrations.tensorboard import TensorBoardLogger
from oracles import NoisyValley, Vector, as_printed, quiet, run


def lively(model, problem, **options):
    """Steps so large that all verdicts occur."""
    options = {"lr": 3.0, "cycle_length": 2, "pairs": PairOptions(memory_size=3, eps=0.3), **options}
    return as_printed(model.parameters(), monitor=lambda: problem.loss(model.vector()), **options)


def scalars(folder):
    """tag → [(step, value), ...]"""
    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_an_event_has_the_verdict_the_totals_and_what_follows_from_the_products():
    problem, events = NoisyValley(), []
    model = Vector(problem.w0)
    opt = lively(model, problem, on_cycle=events.append)
    run(opt, model, problem, range(80))
    assert {e.outcome for e in events} == set(Outcome) - {Outcome.KEPT}
    for event in events:
        values = event.as_dict()
        assert all(isinstance(value, int | float) for value in values.values())
        assert values["loss"] == event.candidate_loss
        assert [values[o.value] for o in Outcome if o.value in values].count(1) == (
            event.outcome is not Outcome.STARTED
        )
        if event.outcome is Outcome.REJECTED:
            assert not {"step_norm", "curvature"} & set(values)
        elif event.outcome is Outcome.STORED:
            assert values["step_norm"] == pytest.approx(math.sqrt(event.ss))
            assert values["curvature"] == event.sy / event.ss > 0.3
    for outcome in (Outcome.STORED, Outcome.SKIPPED, Outcome.REJECTED):
        assert values[f"total_{outcome.value}"] == sum(e.outcome is outcome for e in events)
    assert inside.recent(opt) == events[-40:]


def test_several_callbacks_are_called_in_order_and_one_that_raises_leaves_the_optimizer_whole():
    problem, told = NoisyValley(), []
    plain, model = Vector(problem.w0), Vector(problem.w0)
    expected = run(lively(plain, problem), plain, problem, range(40))

    def fails(event):
        told.append("first")
        raise KeyError("the log is full")

    opt = lively(model, problem, on_cycle=[fails, lambda event: told.append("second")])
    path = []
    for k in range(40):
        if (k + 1) % 2:
            run(opt, model, problem, range(k, k + 1))
        else:
            with pytest.raises(KeyError, match="the log is full"):
                run(opt, model, problem, range(k, k + 1))
        path.append(model.vector())
    assert torch.equal(torch.stack(path), expected)
    assert told == 20 * ["first"]
    model = Vector(problem.w0)
    opt = lively(model, problem, on_cycle=[lambda event: told.append("second"), fails])
    with pytest.raises(KeyError):
        run(opt, model, problem, range(2))
    assert told[-2:] == ["second", "first"]


@pytest.mark.parametrize("bad", [5, "print", [print, 5]])
def test_what_is_no_function_is_refused(bad):
    for make in (quiet, OLBFGS):
        with pytest.raises(TypeError, match="on_cycle must be a function of one event, or a list"):
            make([torch.nn.Parameter(torch.ones(2))], on_cycle=bad)


def test_a_log_function_gets_what_mlflow_and_wandb_want():
    problem, seen = NoisyValley(), {}

    def log_metrics(metrics, step=None, synchronous=None):  # mlflow's
        seen[step] = metrics

    model = Vector(problem.w0)
    opt = quiet(model.parameters(), cycle_length=2, on_cycle=CycleLog(log_metrics, every=3, prefix="opt."))
    run(opt, model, problem, range(20))
    assert list(seen) == [6, 12, 18]
    assert seen[18]["opt.total_stored"] == 8
    assert "opt.loss" not in seen[18]  # there is no monitor
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        CycleLog(log_metrics, every=0)
    with pytest.raises(TypeError, match="log must be a function"):
        CycleLog("mlflow")


@pytest.mark.parametrize("kind", ["folder", "writer"])
def test_tensorboard_reads_back_every_number(tmp_path, kind):
    problem, events = NoisyValley(), []
    model = Vector(problem.w0)
    logger = TensorBoardLogger(tmp_path if kind == "folder" else SummaryWriter(tmp_path))
    opt = lively(model, problem, on_cycle=[logger, events.append])
    run(opt, model, problem, range(80))
    logger.flush()
    expected = {}
    for event in events:
        for name, value in event.as_dict().items():
            expected.setdefault(f"adaqn/{name}", []).append((event.step, pytest.approx(value, rel=1e-6)))
    found = scalars(tmp_path)
    assert found == expected
    assert {"adaqn/loss", "adaqn/step_norm", "adaqn/curvature", "adaqn/pairs"} <= set(found)
    assert found["adaqn/total_rejected"][-1][1] == opt.stats.rejected > 0


def test_a_resumed_run_goes_on_and_hides_what_came_after_its_checkpoint(tmp_path):
    problem = NoisyValley()
    whole, model = Vector(problem.w0), Vector(problem.w0)
    logger = TensorBoardLogger(tmp_path / "whole")
    run(lively(whole, problem, on_cycle=logger), whole, problem, range(30))
    logger.flush()
    logger = TensorBoardLogger(tmp_path / "resumed")
    opt = lively(model, problem, on_cycle=logger)
    run(opt, model, problem, range(14))
    saved, weights = copy.deepcopy(opt.state_dict()), model.vector()
    run(opt, model, problem, range(14, 20))  # lost when the run is killed here
    logger.flush()
    model = Vector(weights)
    logger = TensorBoardLogger(tmp_path / "resumed")
    opt = lively(model, problem, on_cycle=logger)
    opt.load_state_dict(saved)
    run(opt, model, problem, range(14, 30))
    logger.flush()
    assert scalars(tmp_path / "resumed") == scalars(tmp_path / "whole")


def test_an_optimizer_with_a_writer_can_be_copied_and_pickled(tmp_path):
    problem = NoisyValley()
    model = Vector(problem.w0)
    logger = TensorBoardLogger(tmp_path)
    opt = quiet(model.parameters(), cycle_length=2, on_cycle=logger)
    run(opt, model, problem, range(6))
    for other in (pickle.loads(pickle.dumps(opt)), copy.deepcopy(opt)):
        assert inside.recent(other) == inside.recent(opt)
        (copied,) = inside.method(other).on_cycle
        assert copied.folder == str(tmp_path)
        copied(inside.recent(opt)[-1])
        copied.flush()
    run(opt, model, problem, range(6, 8))
    logger.flush()
    assert len(list(tmp_path.glob("events.*"))) == 3


def test_the_end_of_the_program_loses_nothing(tmp_path):
    program = (
        "import sys, torch, adaqn; from adaqn.integrations.tensorboard import TensorBoardLogger;"
        "w = torch.nn.Parameter(torch.ones(3));"
        "opt = adaqn.AdaQN([w], reject='none', cycle_length=1, on_cycle=TensorBoardLogger(sys.argv[1]));"
        "[(w.square().sum().backward(), opt.step()) for _ in range(3)]"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert [step for step, _ in scalars(tmp_path)["adaqn/pairs"]] == [1, 2, 3]


def test_importing_adaqn_needs_torch_alone_and_a_missing_tensorboard_is_named(monkeypatch):
    program = "import sys, adaqn, adaqn.integrations.tensorboard; sys.exit('tensorboard' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'adaqn\[tensorboard\]'"):
        TensorBoardLogger("somewhere")


def test_what_is_neither_folder_nor_writer_is_refused():
    with pytest.raises(TypeError, match="target must be a folder or a SummaryWriter, got 5"):
        TensorBoardLogger(5)


def test_a_fresh_run_leaves_the_curves_of_another_writer_in_its_folder(tmp_path):
    w = torch.nn.Parameter(torch.ones(3))
    writer, logger = SummaryWriter(tmp_path), TensorBoardLogger(tmp_path)
    opt = AdaQN([w], reject="none", on_cycle=logger)
    for step in range(12):
        writer.add_scalar("loss", step, step)
        opt.zero_grad()
        w.square().sum().backward()
        opt.step()
    writer.close()
    logger.flush()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(12))


def test_iterations_of_whole_gradients_are_logged_like_cycles(tmp_path):
    w, told = torch.nn.Parameter(torch.tensor([3.0, -1.0])), []
    logs = [TensorBoardLogger(tmp_path), CycleLog(lambda values, step: told.append((step, values)), every=2)]
    opt = LBFGS([w], max_iter=8, on_cycle=logs)

    def closure():
        opt.zero_grad()
        loss = (w**2).sum() + (w**4).sum()
        loss.backward()
        return loss

    opt.step(closure)
    logs[0].flush()
    n = opt.stats.iterations
    assert n > 3
    assert [step for step, _ in told] == list(range(2, n + 1, 2))
    assert told[0][1]["adaqn/trials"] >= 1
    (last_step, last_loss) = scalars(tmp_path)["adaqn/loss"][-1]
    assert last_step == n
    assert last_loss == pytest.approx(opt.stats.loss)
