from __future__ import annotations

import pytest

from asyncrl.launch.processes.process_group import ProcessGroup


@pytest.fixture
def process_group(tmp_path):
    """The processes of a run in `tmp_path`; they end with the test."""
    (tmp_path / "config.json").write_text('{"model": {"path": "m"}, "env": {"name": "gridworld"}}')
    made = ProcessGroup(tmp_path)
    yield made
    made.stop()
