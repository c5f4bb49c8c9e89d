"""The callback for Hugging Face's Trainer in runs of a few steps."""

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from adaqn import AdaQN, Monitor
from adaqn.integrations.transformers import MonitorCallback, causal_lm_losses, model_loss


class Counting(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (index * 7 + torch.arange(8)) % 16
        return {"input_ids": tokens, "labels": tokens}


class Stream(IterableDataset):
    def __iter__(self):
        return iter([Counting()[i] for i in range(64)])


def model():
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def make(folder, net=None, optimizer=(AdaQN, {"lr": 0.01}), data=None, **options):
    defaults = {"max_steps": 12, "logging_steps": 4, "save_strategy": "no", "per_device_train_batch_size": 8}
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    args = TrainingArguments(str(folder), **{**defaults, **quiet, **options})
    return Trainer(
        net or model(), args, train_dataset=data or Counting(), eval_dataset=Counting(),
        optimizer_cls_and_kwargs=optimizer,
    )  # fmt: skip


def adaqn(trainer):
    return trainer.optimizer.optimizer  # Accelerate's wrapper is around it


def test_statistics_stand_beside_the_loss(tmp_path):
    trainer = make(tmp_path)
    trainer.add_callback(MonitorCallback(trainer, causal_lm_losses, examples=32))
    trainer.train()
    records = trainer.state.log_history
    assert [record["step"] for record in records if "loss" in record] == [4, 8, 12]
    ours = [record for record in records if "adaqn/steps" in record]
    assert [(record["step"], record["adaqn/steps"]) for record in ours] == [(4, 4), (8, 8), (12, 12)]
    assert ours[-1]["adaqn/monitored_loss"] < ours[-1]["adaqn/anchor_loss"]
    assert adaqn(trainer).monitor.batch["input_ids"].shape == (32, 8)


@pytest.mark.filterwarnings("ignore:the monitor returns one number")  # the loss of the model itself
def test_accumulation_clipping_schedule_and_weight_decay(tmp_path):
    trainer = make(tmp_path, gradient_accumulation_steps=2, max_grad_norm=0.5, warmup_steps=3, weight_decay=0.1)
    trainer.add_callback(MonitorCallback(trainer))
    trainer.train()
    opt = adaqn(trainer)
    assert opt.stats.steps == 12
    assert [group["weight_decay"] for group in opt.param_groups] == [0.1, 0.0]
    assert opt.param_groups[0]["lr"] == 0.0  # the linear schedule has ended


def test_the_order_of_the_data_is_not_disturbed(tmp_path):
    nets = model(), model()
    for net, watched in zip(nets, (False, True), strict=True):
        trainer = make(tmp_path, net, (AdaQN, {"reject": "none"}))
        if watched:
            trainer.add_callback(MonitorCallback(trainer))
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(*(net.parameters() for net in nets), strict=True))


def test_the_loss_of_each_sequence_is_the_models_own(tmp_path):
    net = model()
    batch = torch.utils.data.default_collate([Counting()[i] for i in range(6)])
    each = Monitor(net, causal_lm_losses, batch)()
    assert each.shape == (6,)
    assert torch.allclose(each.mean(), Monitor(net, model_loss, batch)())
    batch["labels"] = batch["labels"].clone()
    batch["labels"][0] = -100  # nothing to predict
    batch["labels"][1, :5] = -100
    losses = Monitor(net, causal_lm_losses, batch)()
    assert losses[0] == 0.0
    assert losses[1:].isfinite().all()
    assert torch.equal(losses[2:], each[2:])


@pytest.mark.filterwarnings("ignore:the monitor returns one number")  # the loss of the model itself
def test_streams_need_a_batch(tmp_path):
    trainer = make(tmp_path, data=Stream())
    trainer.add_callback(MonitorCallback(trainer))
    with pytest.raises(TypeError, match="batch="):
        trainer.train()
    batch = torch.utils.data.default_collate([Counting()[i] for i in range(6)])
    trainer = make(tmp_path, data=Stream())
    trainer.add_callback(MonitorCallback(trainer, batch=batch))
    trainer.train()
    assert adaqn(trainer).stats.cycles == 2


def test_other_optimizers_are_named(tmp_path):
    trainer = make(tmp_path, optimizer=(torch.optim.SGD, {"lr": 0.1}))
    trainer.add_callback(MonitorCallback(trainer))
    with pytest.raises(TypeError, match="found SGD"):
        trainer.train()


def without_dropout():
    net = model()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # an evaluation draws random numbers
    return net


def test_it_evaluates_and_ends_at_the_average(tmp_path):
    seen, optimizer = [], (AdaQN, {"lr": 0.01, "reject": "none"})

    def spy(self, *args, **kwargs):
        found = Trainer.prediction_step(self, *args, **kwargs)
        seen.append(adaqn(self)._evaluating)
        return found

    plain = make(tmp_path / "plain", without_dropout(), optimizer)
    plain.train()
    often = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 8}
    nets = []
    for resume in (None, str(tmp_path / "a" / "checkpoint-8")):
        trainer = make(tmp_path / "a", without_dropout(), optimizer, **often)
        trainer.prediction_step = spy.__get__(trainer)
        trainer.add_callback(MonitorCallback(trainer, averaged=True))
        trainer.train(resume_from_checkpoint=resume)
        nets.append([p.detach().clone() for p in trainer.model.parameters()])
    assert seen
    assert all(seen)
    adaqn(trainer).train()
    for average, resumed, ours, theirs in zip(*nets, trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(average, resumed)
        assert torch.equal(ours, theirs)  # neither evaluating nor saving at the average changed the run
        assert not torch.equal(ours, average)
