"""What `asyncrl serve tinker` refuses before it starts anything."""

import pytest

from asyncrl import cli
from asyncrl.extensions.tinker import command


@pytest.mark.parametrize("given", ["0", "-1", "two", "65"])
def test_a_number_of_ranks_that_is_none_is_refused(tmp_path, monkeypatch, capsys, tiny_model, given):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["serve", "tinker", "--model", tiny_model, f"--ranks={given}"]) == 2
    assert f"--ranks: must be a whole number from 1 to 64, got {given!r}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_more_ranks_than_gpus_are_refused_and_without_gpus_they_share_the_cpus(
    tmp_path, monkeypatch, capsys, tiny_model
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "found_gpus", lambda: ("0", "2"))
    assert cli.main(["serve", "tinker", "--model", tiny_model, "--ranks", "3"]) == 2
    said = "--ranks: must be at most the number of GPUs that this process may use, 2, got 3"
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert command.number_of_ranks("", 2) == 2
    with pytest.raises(command.ConfigError, match=r"^train\.ranks: .* 2, got 4"):
        command.number_of_ranks("", 4)
    monkeypatch.setattr(command, "found_gpus", lambda: ())
    assert command.number_of_ranks("3", 1) == 3
