"""AdaQN beside torch.optim.swa_utils: averages of the second half of the run, and SWALR.

python examples/averaged_weights.py checkpoint.pt
"""

import sys

from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

from adaqn import AdaQN, Monitor
from checkpoints import STEPS, batch_of, problem, resume, save


def main(path: str) -> None:
    model, inputs, targets = problem()
    loss_fn = nn.MSELoss()
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, (inputs[:128], targets[:128])))
    averaged, scheduler = AveragedModel(model), SWALR(opt, swa_lr=1e-3, anneal_epochs=20)
    parts = {"model": model, "optimizer": opt, "averaged": averaged, "scheduler": scheduler}
    for step in range(resume(path, **parts), STEPS):
        x, target = batch_of(step, inputs, targets)
        opt.zero_grad()
        loss = loss_fn(model(x), target)
        loss.backward()
        opt.step()
        if step >= STEPS // 2:
            scheduler.step()
            averaged.update_parameters(model)  # to train on from an average, see docs/frameworks.md
        save(path, step, loss, **parts)
    print(f"averaged: loss {loss_fn(averaged.eval()(inputs), targets).item()!r}")
    with opt.averaged():  # AdaQN's own average of the last accepted cycle; allocates one vector
        print(f"last cycle: loss {loss_fn(model.eval()(inputs), targets).item()!r}")


if __name__ == "__main__":
    main(sys.argv[1])
