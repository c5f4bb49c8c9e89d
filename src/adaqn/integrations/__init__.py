"""Where other people's tools meet adaqn: a module for each, which alone imports it.

Importing this needs torch alone. For loops: ``lightning`` and ``transformers`` give AdaQN its monitor and log its
statistics; for logs: ``tensorboard``, and ``cycle_log`` for any other.
"""

from adaqn.integrations.batches import training_batch

__all__ = ["training_batch"]
