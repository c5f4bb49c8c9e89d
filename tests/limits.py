"""How long a test waits for something that should have happened: only a hang takes longer."""

import os

LIMIT = float(os.environ.get("ADAQN_TEST_LIMIT", "600"))
"""Seconds."""
