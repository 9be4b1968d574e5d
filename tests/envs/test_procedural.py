"""Procedural environments: levels, and splits that share no problem."""

import pytest

from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.types import Task


def make(seed=0, level=1, **data):
    return ProceduralEnv(Task("t", "e", seed, data=data), level)


def test_the_level_is_the_setting_the_tasks_or_drawn_by_the_seed():
    assert make(level=3).level == 3
    assert make(**{"level": 2}).level == 2
    drawn = {make(seed, level=0).level for seed in range(50)}
    assert drawn == {1, 2, 3, 4}
    assert make(7, level=0).level == make(7, level=0).level


@pytest.mark.parametrize("level", [5, -1, True, "1", None])
def test_a_level_that_does_not_exist_is_refused(level):
    with pytest.raises(ValueError, match="level: must be one of 1, 2, 3, 4, or 0 for any of them, got"):
        make(level=level)


def test_problems_with_one_key_belong_to_one_split():
    keys = [
        {make(seed).draw(lambda rng: rng.randrange(40), str) for seed in range(start, 400, 2)}
        for start in (0, 1)
    ]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == 40


def test_a_level_with_too_few_problems_is_an_error():
    def draw(seed):
        return make(seed).draw(lambda rng: "only", lambda problem: problem)

    results = []
    for seed in (0, 1):
        try:
            results.append(draw(seed))
        except ValueError as error:
            results.append(str(error))
    assert sorted(results) == ["level: 1 of 'e' has too few problems to split", "only"]
