"""What is checked last before a run starts may refuse it, and has options of its own."""

import argparse
import dataclasses

import pytest

from asyncrl import cli
from asyncrl.commands import train
from asyncrl.errors import ConfigError
from asyncrl.launch.checks.start_check import StartCheck, start_checks
from asyncrl.launch.cluster import cluster_kinds


@dataclasses.dataclass
class Asked(StartCheck):
    """Notes what it is asked with, doubles the steps, and refuses where it is told to."""

    noted: list[tuple[int, bool]]

    def add_options(self, parser):
        parser.add_argument("--refuse", action="store_true")

    def check(self, args, config, alone):
        self.noted.append((config.train.num_steps, alone))
        if args.refuse:
            raise ConfigError("refused at last")
        return config.model_copy(
            update={"train": config.train.model_copy(update={"num_steps": 2 * config.train.num_steps})}
        )


@pytest.fixture
def noted(tmp_path, monkeypatch):
    found = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "start_checks", lambda: [Asked(found)])
    return found


def test_a_check_refuses_before_there_is_a_run_folder(noted, tmp_path, capsys):
    assert cli.main(["train", "gridworld_grpo", "train.num_steps=3", "--refuse"]) == 2
    assert "refused at last" in capsys.readouterr().err
    assert noted == [(3, True)]
    assert not (tmp_path / "runs").exists()


def test_a_run_starts_with_what_a_check_has_settled(noted, monkeypatch):
    def started(config, *rest):
        raise ConfigError(f"{config.train.num_steps} steps")

    monkeypatch.setattr("asyncrl.launch.train.TrainRun", started)
    with pytest.raises(ConfigError, match="6 steps"):
        train.run(cli.parse(["train", "gridworld_grpo", "train.num_steps=3"]))


def test_options_of_what_is_there_do_not_clash():
    parser = argparse.ArgumentParser()
    for one in (*start_checks(), *cluster_kinds().values()):
        one.add_options(parser)
    assert "--ignore-memory" in parser.format_help()
