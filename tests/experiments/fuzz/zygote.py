"""Real processes without a second of imports each: one has loaded everything, and forks for every command.

Started as a program it reads requests from its input, one JSON document a line, and answers each with the exit code.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

NOBODY = 65_534
"""Whom permissions bind: not root, as which tests may run."""


class Zygote:
    """The process that forks, as a test sees it."""

    def __enter__(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def run(self, words, errors, *, kill_after=None, with_signal=signal.SIGKILL, environment=None, as_nobody=False):
        """The exit code of a command, below 0 for a signal; what it says to a person is in the file ``errors``."""
        request = {
            "words": [str(word) for word in words], "errors": str(errors), "kill_after": kill_after,
            "signal": int(with_signal), "environment": environment or {}, "as_nobody": as_nobody,
        }  # fmt: skip
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def serve():
    import pytorch_optimizer  # noqa: F401
    import sklearn.datasets  # noqa: F401

    import adaqn.experiments.commands.app as app  # everything that a command may need, once

    answers = os.fdopen(os.dup(1), "w")
    warm_up(app)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            become(request, app)
        print(waited(child, request), file=answers, flush=True)


def warm_up(app):
    """Some modules are loaded when they are first needed; who has given up his rights may not be able to read them."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        sizes = ["--limit", "2000", "--layers", "1", "--hidden", "4", "--batch-size", "4", "--length", "10"]
        run = [*sizes, "--steps", "2", "--out", f"{folder}/run"]
        for words in (["train", *run], ["sample", run[-1]], ["explain", run[-1]], ["report", folder]):
            sys.argv = ["adaqn", *words]
            with (
                contextlib.suppress(SystemExit),
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
            ):
                app.run()


def become(request, app):
    """The command, in this process, as a shell would start it."""
    code = 1
    try:
        into = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        for descriptor in (1, 2):
            os.dup2(into, descriptor)
        os.environ.update(request["environment"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if request["as_nobody"]:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        sys.argv = ["adaqn", *request["words"]]
        app.run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def waited(child, request):
    """The exit code of a child, which is killed at the moment that was asked for unless it has ended by then."""
    deadline = None if request["kill_after"] is None else time.monotonic() + request["kill_after"]
    while deadline is not None:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            os.kill(child, request["signal"])
            break
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    serve()
