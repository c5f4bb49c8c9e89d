"""Blocks: the pieces into which a matrix is cut, so that a long side costs no more than its blocks."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_SIZE = 2048
"""The longest side of a block."""
SMALL, THIN = 128, 2
"""A side of more than 128 and twice the other has no basis: that of the words of a language model cost more than
the rest of the step together, and the loss was higher with it (``experiments/LOG.md``)."""


@dataclass(frozen=True)
class Block:
    """Rows and columns of a matrix, each as (first, last + 1), and which of the two sides have no basis."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    bare: tuple[bool, bool] = (False, False)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def sides(self) -> tuple[int, int]:
        """The lengths of its bases; 1 where there is none, which is the only basis of that length."""
        p, q = self.shape
        return 1 if self.bare[0] else p, 1 if self.bare[1] else q

    def moved(self, row: int, column: int) -> Block:
        """As it lies in a matrix of which this one begins there."""
        (top, bottom), (first, last) = self.rows, self.columns
        return Block((row + top, row + bottom), (column + first, column + last), self.bare)


def blocks_of(shape: tuple[int, int], block_size: int = BLOCK_SIZE) -> list[Block]:
    """The blocks of a p × q matrix, row by row.

    Each side is cut into as few equal pieces as ``block_size`` allows; the last one may be shorter. A side that is long
    and thin (``THIN``) is left whole, without a basis.

    >>> [(block.shape, block.bare) for block in blocks_of((600, 10), 2048)]
    [((600, 10), (True, False))]
    >>> [(block.rows, block.columns) for block in blocks_of((5, 2), 3)]
    [((0, 3), (0, 2)), ((3, 5), (0, 2))]
    """
    p, q = shape
    bare = p > max(SMALL, THIN * q), q > max(SMALL, THIN * p)
    rows, columns = _cut(p, p if bare[0] else block_size), _cut(q, q if bare[1] else block_size)
    return [Block(r, c, bare) for r in rows for c in columns]


def _cut(n: int, limit: int) -> list[tuple[int, int]]:
    if n == 0:
        return []
    length = -(-n // max(-(-n // limit), 1))
    return [(start, min(start + length, n)) for start in range(0, n, length)]
