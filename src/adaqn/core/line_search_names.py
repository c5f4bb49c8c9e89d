"""Line searches by name."""

from __future__ import annotations

from adaqn.core.backtracking import Backtracking
from adaqn.core.hager_zhang import HagerZhang
from adaqn.core.line_search import LineSearch
from adaqn.core.strong_wolfe import StrongWolfe

LINE_SEARCHES: dict[str, LineSearch] = {
    "strong_wolfe": StrongWolfe(),
    "hager_zhang": HagerZhang(),
    "backtracking": Backtracking(),
}
