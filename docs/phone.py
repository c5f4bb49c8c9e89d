"""For the site: on a phone, the picture that was drawn for one, where there is one beside the other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

NARROW = "(max-width: 600px)"
IMAGE = re.compile(r'<img [^>]*?src="(?P<stem>[^":]+)\.svg"[^>]*>')


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Called by MkDocs with each page; ``name-phone.svg`` is what a phone gets of ``name.svg``."""
    folder = os.path.dirname(os.path.join(config.site_dir, page.file.dest_uri))  # may not be there yet; pictures are
    return with_phone_pictures(output, lambda path: os.path.isfile(os.path.normpath(os.path.join(folder, path))))


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
