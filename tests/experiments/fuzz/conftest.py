"""Makes ``drawing``, ``damaging`` and ``zygote`` importable by the tests in this folder."""

import pytest
from drawing import in_one_process
from zygote import Zygote


@pytest.fixture
def here(monkeypatch, tmp_path):
    """An empty folder to work in, workers and downloads without processes and networks."""
    monkeypatch.chdir(tmp_path)
    in_one_process(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def zygote():
    with Zygote() as process:
        yield process
