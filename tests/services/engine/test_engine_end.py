"""What is left when an engine is stopped: nothing. Other files kill theirs at the end (`kill_and_see_all_end`)."""

import tempfile
from pathlib import Path

import pytest

from tests.engines import serving

pytestmark = pytest.mark.slow


def test_an_engine_that_is_stopped_leaves_no_socket_and_no_file(tiny_model, tmp_path):
    temporary = Path(tempfile.mkdtemp(prefix="asyncrl-"))  # short: it is part of sockets' paths
    with serving(tmp_path, tiny_model, env={"TMPDIR": str(temporary)}):
        assert [path for path in temporary.rglob("*") if path.is_socket()]
    temporary.rmdir()
