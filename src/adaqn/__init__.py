"""adaqn: quasi-Newton training of neural networks in PyTorch."""

from adaqn.core.backtracking import Backtracking
from adaqn.core.curvature import AccumulatedFisher, Curvature
from adaqn.core.hager_zhang import HagerZhang
from adaqn.core.kronecker import Kronecker
from adaqn.core.outcome import Outcome
from adaqn.core.scaling import Adagrad, Adam, BarzilaiBorwein, RMSProp, Scaling
from adaqn.core.secant import KroneckerSecant, Secant
from adaqn.core.strong_wolfe import StrongWolfe
from adaqn.fullbatch.bfgs import BFGS
from adaqn.fullbatch.events import Iteration, WholeStats
from adaqn.fullbatch.lbfgs import LBFGS
from adaqn.optim.adaqn import AdaQN
from adaqn.optim.curvatures import BatchCurvature, EmpiricalFisher, HessianProduct
from adaqn.optim.events import CycleEvent, Stats
from adaqn.optim.family import OLBFGS, RES, SQN, SdLBFGS
from adaqn.optim.monitor import Monitor, RotatingMonitor
from adaqn.optim.monitored import MonitoredGradient
from adaqn.optim.optimizer import QuasiNewton
from adaqn.optim.settings import PRESETS, PairOptions, Preset, RejectOptions, StorageOptions

__version__ = "0.3.0.dev0"

__all__ = [
    "BFGS",
    "LBFGS",
    "OLBFGS",
    "PRESETS",
    "RES",
    "SQN",
    "AccumulatedFisher",
    "AdaQN",
    "Adagrad",
    "Adam",
    "Backtracking",
    "BarzilaiBorwein",
    "BatchCurvature",
    "Curvature",
    "CycleEvent",
    "EmpiricalFisher",
    "HagerZhang",
    "HessianProduct",
    "Iteration",
    "Kronecker",
    "KroneckerSecant",
    "Monitor",
    "MonitoredGradient",
    "Outcome",
    "PairOptions",
    "Preset",
    "QuasiNewton",
    "RMSProp",
    "RejectOptions",
    "RotatingMonitor",
    "Scaling",
    "SdLBFGS",
    "Secant",
    "Stats",
    "StorageOptions",
    "StrongWolfe",
    "WholeStats",
    "__version__",
]
