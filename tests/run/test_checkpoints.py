"""A run's folder stands for its newest complete checkpoint where a policy is played or served."""

import pytest

from asyncrl.run.checkpoints import MARKER, STATE, VALUES, newest_of_run


@pytest.fixture
def checkpoint(tmp_path):
    def made(version, complete=True):
        folder = tmp_path / "runs" / "mine" / "checkpoints" / f"step-{version:06d}"
        (folder / STATE).mkdir(parents=True)
        (folder / STATE / VALUES).write_text("{}")
        if complete:
            (folder / MARKER).write_text("{}")
        return str(folder)

    return made


def test_a_runs_folder_stands_for_its_newest_complete_checkpoint(tmp_path, checkpoint):
    checkpoint(9)
    newest = checkpoint(10)
    checkpoint(11, complete=False)
    assert newest_of_run(str(tmp_path / "runs" / "mine")) == newest


def test_what_is_no_runs_folder_stays_as_given(tmp_path, checkpoint):
    one = checkpoint(3)
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    for given in (one, str(tmp_path / "empty"), str(tmp_path), "Qwen/Qwen3-0.6B"):
        assert newest_of_run(given) == given
