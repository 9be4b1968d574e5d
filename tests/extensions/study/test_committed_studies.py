"""Every study in docs/studies can be made again: its runs are allowed, and its environments play."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from asyncrl.env.registry import load_env
from asyncrl.extensions.study.runner import check_study
from asyncrl.extensions.study.study_file import read_study, study_run
from asyncrl.extensions.supervised.demonstrations import demonstrations

STUDIES = sorted((Path(__file__).parents[3] / "docs" / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_run_of_a_study_could_start(path: Path) -> None:
    check_study(read_study(path))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_experts_of_a_studys_environments_solve_their_tasks(path: Path) -> None:
    study = read_study(path)
    played: set[str] = set()
    for condition, method in product(study.conditions, study.methods):
        config = study_run(study, method, condition, 0, study.tuned()[0]).config()
        key = f"{config.env.name} {config.env.config}"
        if config.model.path == "sft" and key not in played:
            played.add(key)
            demos = list(
                demonstrations(load_env(config.env.name), config.env.name, config.env.config, 2, 1.0, 0, 2)
            )
            assert max(demo.reward for demo in demos) > 0, key
    assert played
