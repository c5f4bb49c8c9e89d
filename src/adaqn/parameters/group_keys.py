"""Keys of a param group that were misspelt: torch keeps any key and reads only those that it knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

OTHER_WORDS = {
    "learning_rate": "lr",
    "step_size": "lr",
    "wd": "weight_decay",
    "weight_decay_rate": "weight_decay",
    "beta1": "momentum",
    "warmup_steps": "warm_up",
    "num_warmup_steps": "warm_up",
    "warmup": "warm_up",
}
"""What other libraries call them."""
LETTERS_PER_MISTAKE = 5
"""A name of eight letters may have one mistake, one of ten or more two. Shorter ones have none: ``lr`` is one mistake
from too many words."""
SHORTEST = 8


def check_misspelt(group: Mapping[str, Any], per_group: Collection[str], of_all: Collection[str]) -> None:
    """An error for a key that is nearly one of ours; the notes of users, schedulers and frameworks pass.

    A key is left alone if the group has the right one too: then it is no slip of the pen.

    Args:
        group: as it was given, without defaults.
        per_group: names that a group may have for itself.
        of_all: names that are given to the optimizer, for all groups.
    """
    for key in group:
        name = meant(key, (*per_group, *of_all))
        if name is None or name in group:
            continue
        where = "" if name in per_group else ", and give it to the optimizer, for all groups"
        raise ValueError(
            f"{key!r} in a param group would change nothing: write {name!r}{where}. To keep a key of your "
            "own in the group, give it another name"
        )


def meant(key: str, names: Collection[str]) -> str | None:
    """The one of these names that the key is another spelling of; ``None`` for the name itself and for other words.

    >>> names = ("lr", "weight_decay", "momentum")
    >>> [meant(key, names) for key in ("weight_deacy", "LR", "learning_rate", "max_momentum", "lr")]
    ['weight_decay', 'lr', 'lr', None, None]
    """
    if key in names or not isinstance(key, str):
        return None
    plain = _letters(key)
    by_word = {_letters(word): name for word, name in OTHER_WORDS.items() if name in names}
    if plain in by_word:
        return by_word[plain]
    for name in names:
        ours = _letters(name)
        allowed = len(ours) // LETTERS_PER_MISTAKE if len(ours) >= SHORTEST else 0
        if abs(len(plain) - len(ours)) <= allowed and mistakes(plain, ours) <= allowed:
            return name
    return None


def mistakes(written: str, meant: str) -> int:
    """Letters to add, leave out, replace, or swap with their neighbour, to come from one to the other.

    >>> mistakes("weight_deacy", "weight_decay"), mistakes("momentun", "momentum"), mistakes("name", "lr")
    (1, 1, 4)
    """
    before, last = [0] * (len(meant) + 1), list(range(len(meant) + 1))
    for i, a in enumerate(written, 1):
        now = [i]
        for j, b in enumerate(meant, 1):
            swapped = i > 1 and j > 1 and a == meant[j - 2] and b == written[i - 2]
            now.append(min(last[j] + 1, now[-1] + 1, last[j - 1] + (a != b), *([before[j - 2] + 1] if swapped else [])))
        before, last = last, now
    return last[-1]


def _letters(key: str) -> str:
    return "".join(filter(str.isalnum, key.lower()))
