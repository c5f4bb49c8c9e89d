"""Blocks: the pieces into which a matrix is cut, so that a long side costs no more than its blocks."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_SIZE = 2048
"""The longest side of a block."""
SMALL, THIN = 128, 4
"""A side of up to 128 is never cut for being long and thin, and a longer one not up to four times the other: the
factors of a block take at most about eight times its own memory."""


@dataclass(frozen=True)
class Block:
    """Rows and columns of a matrix, each as (first, last + 1)."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    def moved(self, row: int, column: int) -> Block:
        """As it lies in a matrix of which this one begins there."""
        (top, bottom), (first, last) = self.rows, self.columns
        return Block((row + top, row + bottom), (column + first, column + last))


def blocks_of(shape: tuple[int, int], block_size: int = BLOCK_SIZE) -> list[Block]:
    """The blocks of a p × q matrix, row by row.

    Each side is cut into as few equal pieces as the limit min(block_size, max(128, 4·other side)) allows; the last
    one may be shorter.

    >>> [block.shape for block in blocks_of((300, 10), 2048)]
    [(100, 10), (100, 10), (100, 10)]
    >>> [(block.rows, block.columns) for block in blocks_of((5, 2), 3)]
    [((0, 3), (0, 2)), ((3, 5), (0, 2))]
    """
    p, q = shape
    rows, columns = _cut(p, _limit(q, block_size)), _cut(q, _limit(p, block_size))
    return [Block(r, c) for r in rows for c in columns]


def _limit(other: int, block_size: int) -> int:
    return min(block_size, max(SMALL, THIN * other))


def _cut(n: int, limit: int) -> list[tuple[int, int]]:
    length = -(-n // max(-(-n // limit), 1))
    return [(start, min(start + length, n)) for start in range(0, n, length)] if n else []
