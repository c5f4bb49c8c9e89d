"""AdaQN with a compiled model (torch.compile).

python examples/compiled.py [folder]
"""

import torch
from torch import nn

from _checkpoints import STEPS, batch_of, parser, problem, resume, save
from adaqn import AdaQN, Monitor


def main(folder: str) -> None:
    model, inputs, targets = problem()
    loss_fn = nn.MSELoss()
    compiled = torch.compile(model)
    # Parameters, monitor and checkpoint use the original model. The monitor's eval mode and its batch size would each
    # trigger another compilation, and the names in a compiled model's state_dict begin with _orig_mod.
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, (inputs[:128], targets[:128])))
    for step in range(resume(folder, model=model, optimizer=opt), STEPS):
        x, target = batch_of(step, inputs, targets)
        opt.zero_grad()
        loss = loss_fn(compiled(x), target)
        loss.backward()
        opt.step()
        save(folder, step, loss, model=model, optimizer=opt)


if __name__ == "__main__":
    main(parser(__file__, __doc__).parse_args().folder)
