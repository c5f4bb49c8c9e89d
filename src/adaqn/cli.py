"""The ``adaqn`` command: what a person types; the work is done in ``adaqn.experiments``."""

from __future__ import annotations

import sys

from adaqn import __version__


def main() -> None:
    """Entry point; without the extra ``experiments`` it says what to install."""
    if sys.argv[1:] == ["--version"]:  # known without the laboratory too
        print(f"adaqn {__version__}")
        return
    try:
        from adaqn.experiments.commands.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "adaqn":
            raise
        print(f"adaqn: the laboratory needs {error.name}: pip install 'adaqn[experiments]'", file=sys.stderr)
        sys.exit(2)
    run()
