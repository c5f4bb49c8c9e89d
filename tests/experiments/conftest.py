"""Makes ``laboratory`` importable by the tests in the folders below."""

import pytest

from adaqn.experiments.training import workers
from copies import CONTEXT


@pytest.fixture(scope="session", autouse=True)
def copied_workers():
    """Commands that run in this process have workers that start at once. Those that are processes spawn theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "CONTEXT", CONTEXT)
        yield
