"""Processes that are copies of one that has loaded torch: a start takes milliseconds instead of seconds.

There is one such process for each process of pytest, so there is one list of what it loads.
"""

import multiprocessing as mp

CONTEXT = mp.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "torch",
        "torch._dynamo",  # the first optimizer of a process would import it
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "adaqn.experiments.commands.app",
        "adaqn.integrations",
    ]
)
