"""AdaQN with gradient accumulation over four small batches, and clipping.

python examples/accumulation_and_clipping.py [folder]
"""

from torch import nn

from _checkpoints import STEPS, batch_of, parser, problem, resume, save
from adaqn import AdaQN, Monitor

PARTS = 4


def main(folder: str) -> None:
    model, inputs, targets = problem()
    loss_fn = nn.MSELoss()
    opt = AdaQN(model.parameters(), monitor=Monitor(model, loss_fn, (inputs[:128], targets[:128])))
    for step in range(resume(folder, model=model, optimizer=opt), STEPS):
        x, target = batch_of(step, inputs, targets)
        opt.zero_grad()
        for small, goal in zip(x.chunk(PARTS), target.chunk(PARTS), strict=True):
            loss = loss_fn(model(small), goal) / PARTS
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()  # sees the clipped sum of gradients
        save(folder, step, loss, model=model, optimizer=opt)


if __name__ == "__main__":
    main(parser(__file__, __doc__).parse_args().folder)
