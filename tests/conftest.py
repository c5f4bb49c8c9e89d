import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

# A shell that starts this in the background has interrupts ignored, and children inherit that: tests that send
# one to a child would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread: tests run side by side, and small tensors gain nothing from two.
torch.set_num_threads(1)

settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
