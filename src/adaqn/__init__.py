"""adaqn: quasi-Newton training of neural networks in PyTorch."""

from adaqn.core.outcome import Outcome
from adaqn.optim.empirical_fisher import EmpiricalFisher
from adaqn.optim.events import CycleEvent, Stats
from adaqn.optim.family import OLBFGS, RES, SQN, SdLBFGS
from adaqn.optim.hessian_product import HessianProduct
from adaqn.optim.methods import AdaQN
from adaqn.optim.monitor import Monitor, RotatingMonitor
from adaqn.optim.presets import PRESETS

__version__ = "0.1.0"

__all__ = [
    "OLBFGS",
    "PRESETS",
    "RES",
    "SQN",
    "AdaQN",
    "CycleEvent",
    "EmpiricalFisher",
    "HessianProduct",
    "Monitor",
    "Outcome",
    "RotatingMonitor",
    "SdLBFGS",
    "Stats",
    "__version__",
]
