"""AdaQN with torch's schedulers: a warm-up, then a cosine decay.

python examples/schedulers.py [folder]
"""

from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from _checkpoints import STEPS, batch_of, parser, problem, resume, save
from adaqn import AdaQN, Monitor

WARMUP = 30


def main(folder: str) -> None:
    model, inputs, targets = problem()
    loss_fn = nn.MSELoss()
    opt = AdaQN(model.parameters(), lr=0.008, monitor=Monitor(model, loss_fn, (inputs[:128], targets[:128])))
    parts = [LinearLR(opt, 0.1, total_iters=WARMUP), CosineAnnealingLR(opt, STEPS - WARMUP)]
    scheduler = SequentialLR(opt, parts, milestones=[WARMUP])
    for step in range(resume(folder, model=model, optimizer=opt, scheduler=scheduler), STEPS):
        x, target = batch_of(step, inputs, targets)
        opt.zero_grad()
        loss = loss_fn(model(x), target)
        loss.backward()
        opt.step()
        scheduler.step()  # after opt.step(), as always
        save(folder, step, loss, model=model, optimizer=opt, scheduler=scheduler)


if __name__ == "__main__":
    main(parser(__file__, __doc__).parse_args().folder)
