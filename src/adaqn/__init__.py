"""adaqn: quasi-Newton training of neural networks in PyTorch."""

from adaqn.core.outcome import Outcome
from adaqn.optim.empirical_fisher import EmpiricalFisher
from adaqn.optim.events import CycleEvent, Stats
from adaqn.optim.methods import AdaQN
from adaqn.optim.monitor import Monitor

__version__ = "0.1.0"

__all__ = ["AdaQN", "CycleEvent", "EmpiricalFisher", "Monitor", "Outcome", "Stats", "__version__"]
