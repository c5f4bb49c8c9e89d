"""Beside other people's loops: what a framework's user needs to give AdaQN its monitor and to read its statistics.

Importing this needs torch alone; ``adaqn.integrations.lightning`` and ``adaqn.integrations.transformers`` need their
packages.
"""

from adaqn.integrations.batches import training_batch

__all__ = ["training_batch"]
