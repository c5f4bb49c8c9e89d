import importlib.util
import os
import shutil
import signal
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, settings

# A shell that starts this in the background has interrupts ignored, and children inherit that: tests that send
# one to a child would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread: tests run side by side, and small tensors gain nothing from two. CI also asks for two: sums over
# threads round differently, and no test may depend on that.
torch.set_num_threads(int(os.environ.get("ADAQN_TEST_THREADS", "1")))

settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = [
    *([] if CHROMIUM else ["Chromium (apt-get install chromium)"]),
    *([] if importlib.util.find_spec("playwright") else ["Playwright (pip install playwright)"]),
]
NOT_IN_A_BROWSER = f"nothing was tested in a browser, for want of {' and '.join(MISSING)}"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser. Without it the tests that ask for it are skipped; in CI they fail, where nobody reads of skips."""
    if MISSING and os.environ.get("CI"):
        pytest.fail(NOT_IN_A_BROWSER)
    if MISSING:
        pytest.skip(NOT_IN_A_BROWSER)
    return CHROMIUM


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases were drawn, of tests that say so with ``record_property("tried", {what: number})``."""
    tried: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    tried.update(value if name == "tried" else {})
    if tried:
        terminalreporter.write_line("drawn: " + ", ".join(f"{count:,} {what}" for what, count in sorted(tried.items())))


def pytest_unconfigure(config: pytest.Config) -> None:
    """After pytest's closing line, which counts skips but does not name them: was there no browser?"""
    terminal = config.pluginmanager.get_plugin("terminalreporter")  # workers of xdist have none
    skipped = terminal.stats.get("skipped", []) if terminal else []
    if any(NOT_IN_A_BROWSER in str(report.longrepr) for report in skipped):
        terminal.write_line(f"NOT COMPLETE: {NOT_IN_A_BROWSER}", yellow=True)
