"""A network with BatchNorm, evaluated at AdaQN's average: its running statistics are computed anew there.

python examples/batchnorm.py [folder]
"""

import copy

from torch import nn
from torch.optim.swa_utils import update_bn

from _checkpoints import STEPS, batch_of, parser, problem, resume, save
from adaqn import AdaQN, Monitor


def main(folder: str) -> None:
    _, inputs, targets = problem()
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 1))
    loss_fn = nn.MSELoss()
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, (inputs[:128], targets[:128])))
    for step in range(resume(folder, model=model, optimizer=opt), STEPS):
        x, target = batch_of(step, inputs, targets)
        opt.zero_grad()
        loss = loss_fn(model(x), target)
        loss.backward()
        opt.step()
        save(folder, step, loss, model=model, optimizer=opt)
    with opt.averaged():
        exported = copy.deepcopy(model)  # the statistics of the training weights stay as they are
    before = loss_fn(exported.eval()(inputs), targets).item()
    update_bn(inputs.split(64), exported)
    after = loss_fn(exported.eval()(inputs), targets).item()
    print(f"at the average: loss {before!r} with the old statistics, {after!r} with its own")


if __name__ == "__main__":
    main(parser(__file__, __doc__).parse_args().folder)
