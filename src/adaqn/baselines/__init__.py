"""The methods that the paper names and that are not of adaQN's family: Hessian-Free, K-FAC and SFO."""

from adaqn.baselines.hessian_free import HessianFree
from adaqn.baselines.kfac import KFAC
from adaqn.baselines.sfo import SFO

__all__ = ["KFAC", "SFO", "HessianFree"]
