"""For the site: what a phone gets instead of wide pictures and wide tables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from html import escape, unescape
from typing import Any

NARROW = "(max-width: 600px)"
IMAGE = re.compile(r'<img [^>]*?src="(?P<stem>[^":]+)\.svg"[^>]*>')
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CELL = re.compile(r"<(?P<tag>th|td)\b(?P<rest>[^>]*)>(?P<inside>.*?)</(?P=tag)>", re.DOTALL)
LINE = 50
"""Characters of a table that fit side by side on a phone, with the space between columns."""
BETWEEN = 3
"""Characters that the space between two columns takes."""
NOTHING = ("", "–")
"""Cells with nothing to say, which are left out of a card."""
ENOUGH = 14
"""A column of text is readable with so many characters a line; numbers and code do not break."""


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Called by MkDocs with each page; ``name-phone.svg`` is what a phone gets of ``name.svg``."""
    folder = os.path.dirname(os.path.join(config.site_dir, page.file.dest_uri))  # may not be there yet; pictures are
    output = with_phone_pictures(output, lambda path: os.path.isfile(os.path.normpath(os.path.join(folder, path))))
    return with_named_cells(output)


def with_phone_pictures(html: str, is_there: Callable[[str], bool]) -> str:
    """Every image with a smaller one beside it becomes a choice of both.

    >>> with_phone_pictures('<img alt="a" src="a.svg" />', lambda path: path == "a-phone.svg")
    '<picture><source media="(max-width: 600px)" srcset="a-phone.svg"><img alt="a" src="a.svg" /></picture>'
    >>> with_phone_pictures('<img alt="a" src="a.svg" />', lambda path: False)
    '<img alt="a" src="a.svg" />'
    """

    def choice(found: re.Match[str]) -> str:
        small = f"{found['stem']}-phone.svg"
        if not is_there(small):
            return found[0]
        return f'<picture><source media="{NARROW}" srcset="{small}">{found[0]}</picture>'

    return IMAGE.sub(choice, html)


def with_named_cells(html: str) -> str:
    """In a table too wide for a phone each cell knows its column: ``style.css`` makes cards of the rows there.

    Of two columns the first is a title of the second, and needs no name beside it.
    Roles are written out, because a browser forgets them where rows are no longer laid out as rows.

    >>> words = "word " * 9
    >>> rows = f"<tr><td>{words}</td><td>{words}</td><td>{words}</td></tr><tr><td>b</td><td>–</td><td>c</td></tr>"
    >>> wide = with_named_cells(f"<table><tr><th>one</th><th>two</th><th>a longer name</th></tr>{rows}</table>")
    >>> '<table role="table" data-cards>' in wide, '<td role="cell" data-name="two">' in wide
    (True, True)
    >>> '<td role="cell" data-name="two" data-none>' in wide
    True
    >>> with_named_cells("<table><tr><th>a</th></tr><tr><td>1</td></tr></table>")
    '<table><tr><th>a</th></tr><tr><td>1</td></tr></table>'
    """
    return TABLE.sub(lambda found: as_cards(found[0]), html)


def as_cards(table: str) -> str:
    rows = [[text_of(cell["inside"]) for cell in CELL.finditer(row)] for row in ROW.findall(table)]
    if len(rows) < 2 or width_of(rows) <= LINE:
        return table
    names, places = rows[0], iter(range(sum(map(len, rows))))

    def named(found: re.Match[str]) -> str:
        column = next(places) % len(names)
        if found["tag"] == "th":
            return f'<th role="columnheader"{found["rest"]}>{found["inside"]}</th>'
        label = f' data-name="{escape(names[column])}"' if column and len(names) > 2 else ""
        if label and text_of(found["inside"]) in NOTHING:
            label += " data-none"
        return f'<td role="cell"{label}{found["rest"]}><span>{found["inside"]}</span></td>'  # one thing beside the name

    made = CELL.sub(named, table).replace("<table>", '<table role="table" data-cards>')
    for tag in ("thead", "tbody"):
        made = made.replace(f"<{tag}>", f'<{tag} role="rowgroup">')
    return made.replace("<tr>", '<tr role="row">')


def width_of(rows: list[list[str]]) -> int:
    """Characters that the columns need to be read side by side."""
    return sum(max(map(needed, column)) + BETWEEN for column in zip(*rows, strict=False))


def needed(text: str) -> int:
    """Of one cell: its longest word, and more if it has many."""
    return max(min(len(text), ENOUGH), max(map(len, text.split()), default=0))


def text_of(html: str) -> str:
    """Without tags."""
    return unescape(re.sub(r"<[^>]+>", "", html)).strip()
