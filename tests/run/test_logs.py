"""The logs of a run's processes."""

import pytest

from asyncrl.errors import InputError
from asyncrl.run.logs import read_log
from tests.run.folders import make_run


def test_logs_are_read_by_their_own_names_only(tmp_path):
    folder = make_run(tmp_path / "run")
    assert read_log(folder, "engine-0") == "the engine serves\n"
    with pytest.raises(InputError, match="no log"):
        read_log(folder, "../config")
