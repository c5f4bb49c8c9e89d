"""Commands with drawn arguments, run in this process: each ends with exit code 0 or with a word, never with a trace."""

import contextlib
import io
import json
import re
import sys
import warnings

import torch
from inline import inline_workers

from adaqn.experiments.commands import app, doctor
from adaqn.experiments.data import files
from adaqn.experiments.optimizers import TABLE
from adaqn.experiments.problems.networks import MODELS
from adaqn.experiments.training import parallel
from adaqn.experiments.training.config import TASKS
from adaqn.experiments.training.whole_settings import PROBLEMS

# ---------------------------------------------------------------------- running


def offline(*_, **__):
    raise OSError(101, "Network is unreachable")


def in_one_process(monkeypatch, folder):
    """Commands start no workers, fetch nothing, and measure no bandwidth."""
    monkeypatch.setattr(parallel, "started_workers", inline_workers)
    monkeypatch.setattr(files.pooch, "HTTPDownloader", offline)
    monkeypatch.setattr(files, "cache_folder", lambda: folder / "cache")
    monkeypatch.setattr(doctor, "READ_BYTES", 1 << 16)
    monkeypatch.setenv(files.DATA_VARIABLE, str(folder))
    monkeypatch.setenv("ADAQN_CHECKPOINT_SECONDS", "0.05")
    monkeypatch.setenv("COLUMNS", "100")


def outcome(words):
    """(Exit code, output, errors); whatever else leaves the command is a bug, told with the words that found it."""
    said, errors = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["adaqn", *map(str, words)]
    threads = torch.get_num_threads()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            app.run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__} of: adaqn {' '.join(map(repr, map(str, words)))}") from error
    finally:
        sys.argv = before
        torch.set_num_threads(threads)
    if code != 0:
        assert_told(errors.getvalue(), words)
    return code, said.getvalue(), errors.getvalue()


PROGRESS = re.compile(r"adaqn: \d+ of \d+")
"""Of a run by the optimizer of that name."""


def assert_told(errors, words):
    """One line of ours, or typer's box about how the command is used."""
    assert "Traceback" not in errors, (words, errors)
    lines = [line for line in errors.splitlines() if line.startswith("adaqn: ") and not PROGRESS.fullmatch(line)]
    assert len(lines) == 1 or "Usage: " in errors or not errors, (words, errors)


# ---------------------------------------------------------------------- drawing

ODD = ("", " ", "x", "-1", "0", "1", "2", "0.5", "-0.0", "nan", "inf", "-inf", "1e30", "1e-30", "1e400", "9" * 25,
       "9" * 400, "9" * 4301, "true", "null", "[]", "{}", "é", "\u202e", "a\nb", "--", "0x10", "1_0",
       "١", "\udcff")  # fmt: skip
"""No path leads out of the folder of a test: as root, a command that writes there would."""
COUNTS = ("1", "1", "2", "3", "5", "8", "0", "-1", "1000000000", "1000000000000", "9" * 30)
FEW = ("1", "1", "2", "3", "0", "-1", "9" * 30)
"""Where a valid large number would only take long."""
SHARES = ("0.5", "0.9", "0.01", "1", "0", "-1", "nan", "inf", "1e300")
SMALL = ("--limit", "2000", "--layers", "1", "--hidden", "4", "--batch-size", "4", "--length", "10", "--steps", "2")
WHOLE = ("--layers", "1", "--hidden", "4", "--steps", "3")


def folders(rng, root):
    """Names of things that are there, and of some that are not."""
    there = [str(path) for path in sorted(root.iterdir())]
    return rng.choice([*there, *there, str(root / "new"), str(root / "a" / "b"), str(root / ("n" * 300)), *ODD])


def machine(rng):
    return {"--threads": rng.choice(FEW), "--device": rng.choice(("cpu", "cpu", "meta", "cuda", "cpu:7", "x", ""))}


RUN = {
    "--task": (*TASKS, "x"),
    "--problem": (*PROBLEMS["pinn"], *PROBLEMS["fit"], "x"),
    "--model": (*MODELS, "x"),
    "--optimizer": tuple(TABLE),
    "--layers": COUNTS,
    "--hidden": COUNTS,
    "--batch-size": COUNTS,
    "--length": COUNTS,
    "--limit": ("1", "30", "500", "2000", "0", "-1", "9" * 30),
    "--points": ("20", "25", "1", "-1", "1000000000000"),
    "--side": FEW,
    "--vocabulary": COUNTS,
    "--monitor-size": COUNTS,
    "--evaluations": COUNTS,
    "--resample": ("0", "1", "2", "-1", "9" * 30),
    "--warm-up": COUNTS,
    "--steps": FEW,
    "--epochs": ("0.001", "0", "-1", "nan", "inf", "1e300"),
    "--lr": ("0.1", "0.01", "1", "1e30", "1e-30", "0", "-1", "nan", "inf", "1e400"),
    "--clip": SHARES,
    "--average": SHARES,
    "--averaging": SHARES,
    "--weight-decay": SHARES,
    "--seed": ("0", "1", "-1", "2147483647", "2147483648"),
    "--schedule": ("constant", "cosine", "x"),
    "--spread": ("variance", "std", "x"),
    "--dtype": ("float32", "float64", "x"),
}
NAMES = ("betas", "eps", "momentum", "weight_decay", "cycle_length", "memory_size", "fisher_size", "scaling", "preset",
         "curvature", "acceptance", "damping", "max_iter", "history_size", "line_search_fn", "foreach", "x", "lr", "",
         "anchor_patience", "reject_window", "history_dtype", "master_weights", "update", "amsgrad",
         "tolerance_grad", "max_eval", "nesterov", "adam_steps", "regularisation", "curvature_test", "scaling_eps",
         "fisher_batch_size", "min_cycle_length", "max_cycle_length", "fisher_device")  # fmt: skip
VALUES = ("1", "2", "0", "-1", "0.5", "1.5", "null", "true", "false", '"x"', "adam", "kronecker", "[]", "{}",
          "[0.9, 0.99]", '["a", "b"]', "[1]", '{"name": "kronecker", "refresh": 2}', '{"name": "x"}', "1e300", "NaN",
          "9" * 400, "[" * 200, "bfloat16", "paper", "modern", "none", "empirical_fisher", "strong_wolfe",
          "10000000000", "auto", "paired")  # fmt: skip


def run_words(rng, root, *, most=5):
    """Options of a run: few and small ones first, then some that are drawn, of which the last one counts."""
    task = rng.choice(TASKS)
    small = SMALL if task in ("char-lm", "word-lm", "addition") else (*SMALL[:8], *SMALL[10:])  # no length
    words = ["--task", task, *(WHOLE if task in PROBLEMS else small)]
    words += ["--points", "20"] if task == "pinn" else []
    for name in rng.sample(sorted(RUN), rng.choice((0, 0, 0, 1, 2, most))):
        words += [name, rng.choice(RUN[name] if rng.random() < 0.9 else ODD)]
    if rng.random() < 0.2:
        words += ["--data", rng.choice(("embedded", "dickens", "mnist", folders(rng, root)))]
    if rng.random() < 0.1:
        words += [word for option in machine(rng).items() for word in option]
    if rng.random() < 0.1:
        words += ["--carry-state"]
    return words


def train_words(rng, root):
    words = ["train", *run_words(rng, root)]
    if rng.random() < 0.4:
        words += ["--optimizer", rng.choice(tuple(TABLE))]
    for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 2))):
        words += ["--option", rng.choice((f"{rng.choice(NAMES)}={rng.choice(VALUES)}", rng.choice(ODD)))]
    if rng.random() < 0.1:
        words += ["--resume"]
    return [*words, "--out", folders(rng, root) if rng.random() < 0.2 else str(root / f"new-{rng.random()}")]


def several_words(rng, root):
    """Commands of many runs, seldom and small."""
    names = ",".join(rng.sample(("adam", "sgd", "adaqn", "adagrad", "x", "", "adam:0.1", "adam:x"), rng.randint(1, 2)))
    out = ["--out", folders(rng, root) if rng.random() < 0.3 else str(root / f"new-{rng.random()}")]
    workers = ["--workers", rng.choice(FEW)]
    kind = rng.choice(("compare", "compare", "tune", "figure", "study"))
    if kind == "compare":
        return [kind, *run_words(rng, root, most=2), "--optimizers", names, *out, "--seeds", rng.choice(FEW)]
    if kind == "tune":
        search = ["--budget", rng.choice(("1", "4", "0", "-1", "9" * 20)), "--search", rng.choice(("grid", "lr", "x"))]
        return [kind, *run_words(rng, root, most=2), "--optimizers", names, *out, *workers, *search]
    if kind == "figure":
        figure = rng.choice(("lm", "memory", "lstm", "mnist", "ablation", "sensitivity", "robustness", "all", "x", ""))
        how = ["--scale", rng.choice(("quick", "paper", "x")), "--seeds", rng.choice(FEW)]
        how += rng.choice(([], ["--budget-hours", rng.choice(SHARES)], ["--redraw", "--results", folders(rng, root)]))
        return [kind, figure, *how, *out, *workers, "--tuning", folders(rng, root)]
    what = rng.choice(
        (["--plan"], ["--page", folders(rng, root)], ["--task", "x"], ["--cell", "x"], ["--time", "--task", "x"])
    )
    return [
        kind,
        rng.choice(("--tasks", "--cells")),
        folders(rng, root),
        "--results",
        folders(rng, root),
        *out,
        *workers,
        *what,
    ]


def other_words(rng, root):
    folder = folders(rng, root)
    as_json = rng.choice(([], ["--json"]))
    kind = rng.choice(("sample", "sample", "explain", "report", "data", "doctor", "odd"))
    if kind == "sample":
        words = ["--count", rng.choice((*FEW, "7")), "--temperature", rng.choice(SHARES), "--seed", rng.choice(FEW)]
        return [kind, folder, *words, "--prompt", rng.choice(ODD), *as_json]
    if kind == "report":
        return [kind, folder, *rng.choice(([], [], ["--out", folders(rng, root)])), *as_json]
    if kind == "data":
        return [
            kind,
            rng.choice(("list", "verify", "download", "x")),
            *rng.choice(([], ["--data-dir", folder])),
            *as_json,
        ]
    if kind == "doctor":
        model = rng.choice(([], ["mlp"], ["x"], ["json:loads"], ["nosuch:f"], ["torch:nn"], [":"], [folder]))
        return [kind, *model, "--threads", rng.choice(FEW), *as_json]
    if kind == "explain":
        return [kind, folder, *as_json]
    return [
        rng.choice(("train", "compare", "tune", "sample", "report", *ODD)),
        *rng.sample(ODD, rng.randint(0, 2)),
        "--x",
    ]


def drawn_command(rng, root):
    share = rng.random()
    if share < 0.6:
        return train_words(rng, root)
    return several_words(rng, root) if share < 0.7 else other_words(rng, root)


def furnish(root):
    """Things for commands to stumble over."""
    (root / "text.txt").write_text("some words here and there\n" * 200, encoding="utf-8")
    (root / "empty.txt").write_bytes(b"")
    (root / "binary").write_bytes(bytes(range(256)) * 8)
    (root / "nothing").mkdir()
    (root / "dangling").symlink_to(root / "nowhere")
    (root / "loop").symlink_to(root / "loop")
    (root / "list.json").write_text("[]")
    (root / "page.md").write_text("# Results\n")
    (root / "cells.json").write_text(json.dumps(CELLS))


CELLS = {
    "seeds": 1, "points": 1, "regimes": {"constant": {"warm_up": 0.5, "averaging": 8}}, "core_methods": ["sgd"],
    "core": {"tiny": {"title": "t", "task": "mlp", "hidden": 2, "layers": 1, "limit": 64, "steps": 2}},
}  # fmt: skip
"""The smallest study."""
