"""The ``adaqn`` command, one module per thing to type."""
