"""Procedural environments: levels, and splits that share no problem."""

import pytest

from asyncrl.envs.procedural import ProceduralEnv, one_of, whole_number
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


def test_settings_are_checked_with_what_is_allowed():
    assert (whole_number("n", 3, 1, 5), one_of("k", "a", ("a", "b"))) == (3, "a")
    for value in (0, 6, 2.0, True, "3"):
        with pytest.raises(ValueError, match=r"n: must be an integer from 1 to 5, got"):
            whole_number("n", value, 1, 5)
    with pytest.raises(ValueError, match="k: must be one of a, b, got 'c'"):
        one_of("k", "c", ("a", "b"))
