"""What was measured once is not measured again in this session."""

import pytest

from tests.shared import shared_folder


@pytest.fixture(autouse=True)
def session_cache(monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(shared_folder() / "cache"))
