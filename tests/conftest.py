import pytest
import torch
from hypothesis import HealthCheck, settings

# One thread: tests run side by side, and small tensors gain nothing from two.
torch.set_num_threads(1)

settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
