"""For the site: docstrings as Markdown. Formulas become MathML, which browsers draw by themselves, also offline."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")
INLINE = re.compile(r":math:`([^`]+)`")
DISPLAY = re.compile(r"^\.\. math::\n((?:(?:[ \t]+.*)?\n)+)", flags=re.M)
SESSION = re.compile(r"^>>> .*(?:\n(?!\s*$).+)*", flags=re.M)
LITERAL = re.compile(r"::\n\n((?: {4}.*\n|\n)+)")


class Readable(Extension):
    """Rewrites the reST of our docstrings before mkdocstrings parses them."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    r"""Roles as code, formulas as MathML, sessions and literal blocks as fenced code.

    >>> as_markdown(":class:`adaqn.Monitor` says\n\n>>> 1 + 1\n2").splitlines()
    ['`adaqn.Monitor` says', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    text = ROLE.sub(r"`\1`", docstring + "\n")
    text = LITERAL.sub(lambda found: f":\n\n```text\n{dedent(found[1]).strip()}\n```\n\n", text)
    text = DISPLAY.sub(lambda found: f"<div>{convert(_one_line(found[1]), display='block')}</div>\n\n", text)
    text = INLINE.sub(lambda found: f"<span>{convert(found[1])}</span>", text)  # a bare <math> would begin a paragraph
    return SESSION.sub(lambda found: f"```pycon\n{found[0]}\n```", text).rstrip("\n")


def _one_line(formula: str) -> str:
    return " ".join(formula.split())
