"""How much of a step's play was void, by environment."""

from dataclasses import replace

from asyncrl.train.loop.voids import void_metrics, void_warnings
from asyncrl.types import FailureClass, Status
from tests.train.factories import group


def played(env, attempts, failed=0):
    """Return a group of an episode for each of these numbers of attempts; the first `failed` of them failed at last."""
    made = group("t", [0.0] * len(attempts))
    episodes = [
        replace(t, info={"attempts": n} if n > 1 else {})
        for t, n in zip(made.trajectories, attempts, strict=True)
    ]
    episodes[:failed] = [
        replace(t, status=Status.FAILED, failure=FailureClass.INFRASTRUCTURE) for t in episodes[:failed]
    ]
    return replace(made, task=replace(made.task, env=env), trajectories=tuple(episodes))


def test_the_share_of_void_attempts_is_told_by_environment():
    groups = [played("code", [1, 2, 1, 4]), played("code", [3, 1], failed=1), played("nim", [1, 1])]
    # Of 12 attempts 1 + 3 + 2 were played again, and the last one of a failed episode is void, too.
    assert void_metrics(groups) == {"void/code": 7 / 12}
    assert void_metrics(groups[2:]) == {}


def test_an_agents_own_failure_and_further_trajectories_of_an_episode_are_not_counted():
    made = group("t", [0.0, 0.0])
    failed = replace(made.trajectories[0], status=Status.FAILED, failure=FailureClass.AGENT, info={})
    branch = replace(made.trajectories[1], episode_index=2, info={"rollout": 1, "attempts": 3})
    first = replace(made.trajectories[1], info={"rollout": 1, "attempts": 3})
    assert void_metrics([replace(made, trajectories=(failed, first, branch))]) == {"void/gridworld": 2 / 4}


def test_much_of_it_is_worth_a_warning_and_a_few_episodes_are_not():
    assert void_warnings([played("code", [2, 2])]) == {}
    assert void_warnings([played("code", [1] * 18 + [2])]) == {}
    (said,) = void_warnings([played("code", [2] * 10)]).values()
    assert said.startswith("10 of 20 attempts at episodes of 'code' were lost")
