"""Monitors whose answers are written down."""


def answering(values):
    """A monitor that answers with these values at the end of cycles, and to the try in the first step."""
    left = iter(values)
    first = next(left)
    asked = 0

    def monitor():
        nonlocal asked
        asked += 1
        return first if asked <= 2 else next(left)

    return monitor
