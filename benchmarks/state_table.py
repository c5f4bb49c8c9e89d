"""The table of README.md and docs/index.md: what the state of an optimizer takes, before you start.

    python benchmarks/state_table.py            # print it
    python benchmarks/state_table.py --write    # and put it into both pages

Nothing is allocated: AdaQN's numbers are ``opt.state_size()`` on the meta device, with everything at its default.
Adam keeps two vectors. SOAP, as in pytorch_optimizer, keeps two and for each matrix (and tensor of more dimensions) an
average and a basis of every side of up to 10,000.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from adaqn import AdaQN
from adaqn.core.units import readable_size

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
MARKS = "<!-- benchmarks/state_table.py -->", "<!-- end of the table -->"
MODELS = {
    "1 million": {"width": 128, "layers": 5, "vocabulary": 65, "context": 256},
    "10 million": {"width": 384, "layers": 6, "vocabulary": 65, "context": 256},
    "124 million (GPT-2)": {"width": 768, "layers": 12, "vocabulary": 50257, "context": 1024},
}
SOAP_LARGEST_SIDE = 10_000


def gpt_shapes(width: int, layers: int, vocabulary: int, context: int) -> list[tuple[int, ...]]:
    """The parameters of a GPT whose output layer is its embedding."""
    norm, matrix = [(width,)] * 2, [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    block = [*norm, *norm, *(shape for m in matrix for shape in (m, m[:1]))]
    return [(vocabulary, width), (context, width), *(block * layers), *norm]


def weights(shapes: Sequence[tuple[int, ...]]) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes)


def adam_bytes(shapes: Sequence[tuple[int, ...]]) -> int:
    return 2 * 4 * weights(shapes)


def soap_bytes(shapes: Sequence[tuple[int, ...]]) -> int:
    sides = [side for shape in shapes if len(shape) > 1 for side in shape if side <= SOAP_LARGEST_SIDE]
    return adam_bytes(shapes) + 2 * 4 * sum(side**2 for side in sides)


def adaqn_bytes(shapes: Sequence[tuple[int, ...]]) -> int:
    return AdaQN([nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]).state_size()


def table() -> str:
    rows = ["| weights | Adam | SOAP | AdaQN |", "|---|---|---|---|"]
    for name, sizes in MODELS.items():
        shapes = gpt_shapes(**sizes)
        cells = [readable_size(count(shapes)) for count in (adam_bytes, soap_bytes, adaqn_bytes)]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The text of a page with the table between its marks."""
    first, last = map(re.escape, MARKS)
    found, count = re.subn(f"{first}.*?{last}", f"{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}", page, flags=re.S)
    if count != 1:
        raise ValueError(f"the marks {MARKS[0]} ... {MARKS[1]} must stand in the page once, found {count}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into README.md and docs/index.md")
    print(table())
    if parser.parse_args().write:
        for page in PAGES:
            page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
