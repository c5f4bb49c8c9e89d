"""A run that is interrupted where a test wants it."""


def at_step(step):
    """A listener that does as Ctrl-C after that step."""

    def interrupt(progress):
        if progress.step == step:
            raise KeyboardInterrupt

    return interrupt
