"""AdaQN in Hugging Face's Trainer, on a tiny language model with random weights.

python examples/huggingface_trainer.py [folder]
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from adaqn import AdaQN
from adaqn.integrations.transformers import MonitorCallback, causal_lm_losses

COMPLETE = "complete"


class Counting(Dataset):
    """Sequences that count upwards, modulo 32."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index * 7 + torch.arange(12)) % 32
        return {"input_ids": tokens, "labels": tokens}


class Marking(TrainerCallback):
    """Mark complete checkpoints: a checkpoint is a folder, and a kill may leave it incomplete."""

    def on_save(self, args, state, control, **kwargs) -> None:
        Path(args.output_dir, f"checkpoint-{state.global_step}", COMPLETE).touch()
        print(f"step {state.global_step}: loss {state.log_history[-2]['loss']!r}", flush=True)


def last_whole_checkpoint(folder: str) -> str | None:
    whole = [path.parent for path in Path(folder).glob(f"checkpoint-*/{COMPLETE}")]
    return str(max(whole, key=lambda path: int(path.name.split("-")[1]))) if whole else None


def main(folder: str) -> None:
    set_seed(0)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 32}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    args = TrainingArguments(
        folder,
        max_steps=80,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        warmup_steps=5,
        logging_steps=5,
        save_steps=5,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    # lr is set here: args.learning_rate applies only to the optimizers that the Trainer builds itself.
    trainer = Trainer(
        model, args, train_dataset=Counting(), optimizer_cls_and_kwargs=(AdaQN, {"lr": 0.008}), callbacks=[Marking()]
    )
    trainer.add_callback(MonitorCallback(trainer, causal_lm_losses))
    last = last_whole_checkpoint(folder)
    if last is not None:
        print(f"resuming from {last}: delete {folder} to start over")
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "folder for checkpoints; if there are any, the run resumes from them (default: %(default)s)"
    parser.add_argument("folder", nargs="?", default="examples-output/huggingface_trainer", help=about)
    main(parser.parse_args().folder)
