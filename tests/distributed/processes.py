"""Real processes on gloo: each runs a function of this folder and hands back what it returns."""

import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from copies import CONTEXT
from limits import LIMIT


def run_processes(count, function, *args):
    """What ``function(*args)`` returns in each of ``count`` processes; an error in one of them is an error here."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            CONTEXT.Process(target=_work, args=(rank, count, folder, function, args), daemon=True)
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + LIMIT
        for process in processes:
            process.join(max(0.1, deadline - time.monotonic()))
        hung = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        for process in processes:
            if process.exitcode is None:
                process.kill()
                process.join(10)
        results = [_read(Path(folder, f"{rank}.pt")) for rank in range(count)]
    errors = [f"process {rank}:\n{error}" for rank, (_, error) in enumerate(results) if error]
    assert not errors, "\n".join(errors)
    assert not hung, f"processes {hung} hung for {LIMIT} seconds"
    return [result for result, _ in results]


def _read(path):
    return torch.load(path, weights_only=False) if path.exists() else (None, None)


def _work(rank, count, folder, function, args):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=timedelta(seconds=LIMIT)
    )
    try:
        outcome = (function(*args), None)
    except BaseException:
        outcome = (None, traceback.format_exc())
    torch.save(outcome, Path(folder, f"{rank}.part"))
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.pt"))
    if outcome[1] is None:
        dist.barrier()
    dist.destroy_process_group()
