"""``python -m adaqn`` is the ``adaqn`` command."""

from adaqn.cli import main

main()
