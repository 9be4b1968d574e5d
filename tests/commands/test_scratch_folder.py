"""What a command leaves of its folder: nothing, or after an error of its own the logs, which it names."""

import pytest

from asyncrl.commands.scratch_folder import scratch_folder
from asyncrl.errors import ConfigError


def fail(folder, *written):
    for name in written:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("why")
    raise ConfigError("no")


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
        fail(folder, "logs/engine-0.log")
    assert folder.is_dir() and folder.parent == tmp_path and folder.name.startswith("asyncrl-eval-")
    assert capsys.readouterr().err == f"logs of this evaluation: {folder}/logs\n"


@pytest.mark.parametrize("written", [(), ("config.json",)])
def test_an_error_before_anything_was_logged_leaves_and_names_nothing(written, capsys):
    with pytest.raises(ConfigError), scratch_folder("eval") as folder:
        fail(folder, *written)
    assert not folder.exists()
    assert capsys.readouterr().err == ""
