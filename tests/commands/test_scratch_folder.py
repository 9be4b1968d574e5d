"""What a command leaves of its folder: nothing, or after an error of its own the logs, which it names."""

import pytest

from asyncrl.commands.scratch_folder import scratch_folder
from asyncrl.errors import ConfigError


def test_nothing_is_left_by_a_command_that_ends(capsys):
    with scratch_folder("try") as folder:
        (folder / "logs").mkdir()
    assert not folder.exists()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nor_by_one_that_is_interrupted_or_at_fault(error, capsys):
    with pytest.raises(error), scratch_folder("try") as folder:
        raise error
    assert not folder.exists()
    assert capsys.readouterr().err == ""


def test_an_error_that_may_refer_to_a_log_leaves_and_names_them(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError), scratch_folder("eval", "logs of this evaluation") as folder:
        (folder / "logs").mkdir()
        (folder / "logs" / "engine-0.log").write_text("why")
        raise ConfigError("no")
    assert folder.is_dir() and folder.parent == tmp_path and folder.name.startswith("asyncrl-eval-")
    assert capsys.readouterr().err == f"logs of this evaluation: {folder}/logs\n"


@pytest.mark.parametrize("made", [False, True])
def test_an_error_before_anything_was_logged_leaves_and_names_nothing(made, capsys):
    with pytest.raises(ConfigError), scratch_folder("eval") as folder:
        if made:
            (folder / "logs").mkdir()
        raise ConfigError("no")
    assert not folder.exists()
    assert capsys.readouterr().err == ""
