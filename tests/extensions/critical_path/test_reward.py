"""What an episode earns goes to all of its agents, and what it needs to one row of the metrics."""

import asyncio
from dataclasses import replace

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.critical_path.reward import rewarding
from asyncrl.rollout.episode import episode_ends
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.types import Task
from tests.extensions.critical_path.test_lengths import agent, thread

PLAIN = {"model": {"path": "m"}, "env": {"name": "gridworld"}}
ON = PLAIN | {"critical_path": {"measured": True, "factor": 0.5}, "algo": {"baseline_unit": "episodes"}}


def ended(episode, recipe=ON):
    made = rewarding(WorkerContext(parse_config(recipe, "recipe")))
    return asyncio.run(made.apply(episode, Task("t", "threads"), []))


def test_every_agent_of_a_success_earns_it_in_its_last_turn():
    episode = [replace(agent(5, 7), success=True, reward=1.0), thread("t/1", 10), thread("t/2", 30)]
    main, *threads = ended(episode)
    assert (main.reward, [turn.reward for turn in main.turns]) == (
        pytest.approx(1.1),
        [0.0, pytest.approx(0.1)],
    )
    assert [one.reward for one in threads] == [pytest.approx(0.1)] * 2
    assert main.components == {"critical_path": 42.0, "acceleration": pytest.approx(52 / 42)}
    assert [one.components for one in threads] == [{}, {}]


def test_a_failure_is_measured_and_earns_nothing():
    main, one = ended([replace(agent(5, 7), success=False), thread("t/1", 10)])
    assert (main.reward, one.reward) == (0.0, 0.0)
    assert main.components["critical_path"] == 22.0


def test_a_run_that_asks_for_it_has_it():
    def ends(recipe):
        return [type(end).__name__ for end in episode_ends(WorkerContext(parse_config(recipe, "recipe")))]

    assert ends(PLAIN) == []
    assert ends(PLAIN | {"critical_path": {"measured": True}}) == ["CriticalPathReward"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"factor": 0.5}, r"critical_path\.factor: needs critical_path\.measured=true, got 0\.5 without it"),
        (
            {"measured": True, "most": 0.5},
            r"critical_path\.most: is not read with critical_path\.factor=0, got 0\.5",
        ),
    ],
)
def test_settings_that_nothing_reads_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(PLAIN | {"critical_path": given}, "recipe")
