"""AdaQN with torch.optim.swa_utils: an average over the second half of the run, and SWALR.

python examples/averaged_weights.py [folder]
"""

from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

from _checkpoints import STEPS, batch_of, parser, problem, resume, save
from adaqn import AdaQN, Monitor


def main(folder: str) -> None:
    model, inputs, targets = problem()
    loss_fn = nn.MSELoss()
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, (inputs[:128], targets[:128])))
    averaged, scheduler = AveragedModel(model), SWALR(opt, swa_lr=1e-3, anneal_epochs=20)
    parts = {"model": model, "optimizer": opt, "averaged": averaged, "scheduler": scheduler}
    for step in range(resume(folder, **parts), STEPS):
        x, target = batch_of(step, inputs, targets)
        opt.zero_grad()
        loss = loss_fn(model(x), target)
        loss.backward()
        opt.step()
        if step >= STEPS // 2:
            scheduler.step()
            averaged.update_parameters(model)  # to continue training from an average, see docs/frameworks.md
        save(folder, step, loss, **parts)
    print(f"averaged: loss {loss_fn(averaged.eval()(inputs), targets).item()!r}")
    with opt.averaged():  # AdaQN's own average, over about the last eighth of the run
        print(f"AdaQN's average: loss {loss_fn(model.eval()(inputs), targets).item()!r}")


if __name__ == "__main__":
    main(parser(__file__, __doc__).parse_args().folder)
