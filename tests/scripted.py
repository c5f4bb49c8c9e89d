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


class Written:
    """A monitor whose answers are written down: one per call, the last for ever; the try gets the first one too."""

    def __init__(self, *answers):
        self.answers = [answers[0], *answers]

    def __call__(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
