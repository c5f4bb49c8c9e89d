"""The Lightning callback in runs of a few steps: monitors, what is logged, accumulation, precision, errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning_module import Regression, loader
from torch import nn

from adaqn import OLBFGS, AdaQN, Monitor, StorageOptions
from adaqn.integrations.lightning import MonitorCallback
from limits import LIMIT

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    "ignore:The 'train_dataloader' does not have many workers",
)


def fit(module, callback, data=None, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    options = {"max_epochs": 2, "accelerator": "cpu", "logger": False, **quiet, **options}
    trainer = Trainer(callbacks=[callback] if callback else [], **options)
    trainer.fit(module, data or loader())
    return trainer.optimizers[0]


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_it_is_the_plain_loop():
    """A closure runs forward, backward and clipping; the monitor's batch is the training loader's."""
    module, plain = Regression(), Regression()
    opt = fit(module, MonitorCallback(nn.MSELoss()), gradient_clip_val=0.5)
    data = loader()
    expected = AdaQN(plain.parameters(), monitor=Monitor(plain, nn.MSELoss(), data.dataset[:128]))
    for _ in range(2):
        for x, target in data:
            expected.zero_grad()
            nn.functional.mse_loss(plain(x), target).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            expected.step()
    assert opt.stats == expected.stats
    assert opt.stats.cycles > 3
    assert torch.equal(weights(module), weights(plain))


def test_the_order_of_shuffled_data_is_not_disturbed():
    without, with_callback = Regression(torch.optim.Adam), Regression(torch.optim.Adam)

    class Looking(MonitorCallback):
        def on_train_start(self, trainer, pl_module):
            self._transferred(trainer, pl_module)

    for module, callback in ((without, None), (with_callback, Looking(nn.MSELoss()))):
        torch.manual_seed(4)
        fit(module, callback, loader(shuffle=True))
    assert torch.equal(weights(without), weights(with_callback))


def test_accumulated_gradients_make_one_step():
    opt = fit(Regression(), MonitorCallback(nn.MSELoss()), accumulate_grad_batches=4)
    assert opt.stats.steps == 2 * 16 // 4


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precisions(precision):
    module = Regression(lambda params: AdaQN(params, storage=StorageOptions(master_weights=precision == "bf16-true")))
    opt = fit(module, MonitorCallback(nn.MSELoss()), precision=precision)
    assert opt.stats.cycles == 6
    assert weights(module).isfinite().all()


def test_a_method_that_runs_the_closure_twice():
    module, plain = (Regression(lambda params: OLBFGS(params, lr=0.01)) for _ in range(2))
    opt, expected = fit(module, MonitorCallback(nn.MSELoss()), max_epochs=1), plain.configure_optimizers()
    for batch in loader():

        def closure(batch=batch):
            expected.zero_grad()
            loss = plain.training_step(batch)
            loss.backward()
            return loss

        expected.step(closure)
    assert opt.stats == expected.stats
    assert opt.stats.stored > 0
    assert torch.equal(weights(module), weights(plain))


def test_statistics_and_cycles_are_logged_and_listeners_still_hear(tmp_path):
    heard = []
    module = Regression(lambda params: AdaQN(params, on_cycle=heard.append))
    opt = fit(module, MonitorCallback(nn.MSELoss()), logger=CSVLogger(tmp_path), log_every_n_steps=5)
    names, *rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    last = dict(zip(names.split(","), rows[-1].split(","), strict=True))
    assert float(last["adaqn/stored"]) == opt.stats.stored
    assert float(last["adaqn/monitored_loss"]) == pytest.approx(heard[-1].candidate_loss)
    assert len(heard) == opt.stats.cycles


def test_a_monitor_of_ones_own_stays():
    module = Regression(lambda params: AdaQN(params, monitor=own))
    own = lambda: 1.0  # noqa: E731
    assert fit(module, MonitorCallback(nn.MSELoss())).monitor is own


def test_a_given_batch_is_used():
    x = torch.ones(3, 6)
    opt = fit(Regression(), MonitorCallback(nn.MSELoss(), batch=(x, x[:, :1])))
    assert torch.equal(opt.monitor.batch[0], x)


def test_other_optimizers_are_named():
    with pytest.raises(TypeError, match="found Adam"):
        fit(Regression(torch.optim.Adam), MonitorCallback(nn.MSELoss()))


def test_several_loaders_are_refused_by_name():
    with pytest.raises(TypeError, match="list"):
        fit(Regression(), MonitorCallback(nn.MSELoss()), [loader(), loader()])


@pytest.mark.slow
def test_two_processes_agree_and_resume(tmp_path):
    script = str(Path(__file__).parent / "lightning_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in range(2))
    assert not torch.equal(first["whole"]["monitored"], second["whole"]["monitored"]), "each has its share of the data"
    for process in (first, second):
        assert process["whole"]["cycles"] == process["resumed"]["cycles"] == 3
        assert torch.equal(process["whole"]["monitored"], process["resumed"]["monitored"])
        for run in ("whole", "resumed"):
            for name, value in first["whole"]["weights"].items():
                assert torch.equal(value, process[run]["weights"][name])


def test_it_validates_and_ends_at_the_average():
    class Validated(Regression):
        def validation_step(self, batch):
            seen.append(self.trainer.optimizers[0]._evaluating)

        def val_dataloader(self):
            return loader()

    seen = []
    module, plain = Validated(), Regression()
    options = {"num_sanity_val_steps": 0, "limit_val_batches": 1}
    opt = fit(module, MonitorCallback(nn.MSELoss(), averaged=True), **options)
    fit(plain, MonitorCallback(nn.MSELoss()))
    assert seen == [True, True]
    average = weights(module)
    assert not torch.equal(average, weights(plain))
    opt.train()
    assert torch.equal(weights(module), weights(plain))


class Scored(Regression):
    """Logs the loss of a validation, by which checkpoints are kept."""

    def validation_step(self, batch):
        x, target = batch
        self.log("val_loss", nn.functional.mse_loss(self(x), target))

    def val_dataloader(self):
        return loader()


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_checkpoint_of_the_best_validation_holds_what_was_validated_and_resumes(tmp_path):
    def run(epochs, keeper=None, **more):
        module = Scored()
        callbacks = [MonitorCallback(nn.MSELoss(), averaged=True), *([keeper] if keeper else [])]
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        trainer = Trainer(
            max_epochs=epochs, accelerator="cpu", callbacks=callbacks, enable_checkpointing=keeper is not None,
            num_sanity_val_steps=0, **quiet,
        )  # fmt: skip
        trainer.fit(module, loader(), **more)
        return module, trainer.optimizers[0]

    keeper = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1)
    run(2, keeper)
    assert len(keeper.best_k_models) == 2
    for path, score in keeper.best_k_models.items():
        kept = Scored()
        kept.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
        with torch.no_grad():
            losses = [float(nn.functional.mse_loss(kept(x), target)) for x, target in loader()]
        assert sum(losses) / len(losses) == pytest.approx(float(score), rel=1e-5)
    first = next(path for path in keeper.best_k_models if "epoch=0" in path)
    again = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=-1)
    (whole, _), (resumed, opt) = run(2), run(2, again, ckpt_path=first, weights_only=True)
    assert torch.equal(weights(whole), weights(resumed))
    opt.train()
    assert not torch.equal(weights(whole), weights(resumed))
