"""The site links to the repository that it was built from, if its origin has an address on the web."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """An address in ``mkdocs.yml`` comes first; a clone from a folder has none."""
    found = address(origin(Path(config.config_file_path).parent))
    if not config.repo_url and found is not None:
        config.repo_url, config.repo_name = found, "/".join(found.split("/")[-2:])
    return config


def origin(folder: Path) -> str:
    """As git says it; empty without git or without an origin."""
    command = ["git", "-C", str(folder), "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def address(remote: str) -> str | None:
    """The page of a remote; ``None`` where it is a folder, or no host of the web.

    >>> address("git@example.org:owner/adaqn.git"), address("https://user:secret@example.org/owner/adaqn")
    ('https://example.org/owner/adaqn', 'https://example.org/owner/adaqn')
    >>> address("/srv/adaqn"), address("file:///srv/adaqn"), address("")
    (None, None, None)
    """
    found = re.fullmatch(r"(?:(?:https?|ssh|git)://)(?:[^@/]*@)?([\w.-]+\.\w+)(?::\d+)?/(.+?)(?:\.git)?/?", remote)
    found = found or re.fullmatch(r"(?:[\w.-]+@)?([\w-]+(?:\.[\w-]+)*\.\w+):(?!/)(.+?)(?:\.git)?/?", remote)
    return None if found is None else f"https://{found[1]}/{found[2]}"
