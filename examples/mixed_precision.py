"""AdaQN with autocast: bfloat16, or float16 with a GradScaler.

python examples/mixed_precision.py [folder] [--precision float16]
"""

import torch
from torch import nn

from _checkpoints import STEPS, batch_of, parser, problem, resume, save
from adaqn import AdaQN, Monitor


def main(folder: str, precision: str) -> None:
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}[precision]
    model, inputs, targets = problem()
    # Parameters, optimizer state and monitor are float32 (Monitor(autocast=...) changes the monitor).
    opt = AdaQN(model.parameters(), monitor=Monitor(model, nn.MSELoss(), (inputs[:128], targets[:128])))
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    for step in range(resume(folder, model=model, optimizer=opt, scaler=scaler), STEPS):
        x, target = batch_of(step, inputs, targets)
        opt.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = nn.functional.mse_loss(model(x).float(), target)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # only after unscaling
        scaler.step(opt)  # skips a step whose gradients overflowed
        scaler.update()
        save(folder, step, loss, model=model, optimizer=opt, scaler=scaler)


if __name__ == "__main__":
    arguments = parser(__file__, __doc__)
    arguments.add_argument("--precision", choices=("float16", "bfloat16"), default="bfloat16")
    main(**vars(arguments.parse_args()))
