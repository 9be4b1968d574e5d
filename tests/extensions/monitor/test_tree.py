"""The tree of a group: forks, calls of agents, and what only looks like a fork."""

import pytest

from asyncrl.data.table import TrajectoryTable
from asyncrl.extensions.monitor.episodes import EpisodeTable
from tests.extensions.monitor.trees import gateway_group, sub_agent_group, tree_group
from tests.run.folders import make_run


@pytest.fixture
def tree(tmp_path):
    """The tree of a group as a run's folder has it."""

    def read(group):
        TrajectoryTable(tmp_path / "run" / "trajectories").write(1, [group])
        return EpisodeTable(tmp_path / "run").tree(1, group.id)

    return read


def outline(rows):
    return [
        (
            row["episode_index"],
            row["parent"] and tuple(row["parent"].values()),
            [(node["turn"], node["depth"]) for node in row["nodes"]],
        )
        for row in rows
    ]


def test_branches_hang_from_the_turn_they_left_and_agents_from_the_turn_that_called_them(tree):
    assert outline(tree(tree_group())) == [
        (0, None, [(0, 0), (1, 1), (2, 2)]),
        # The branch that leaves last comes first.
        (1, (0, 1, "branch"), [(2, 2), (3, 3)]),
        (2, (0, 0, "branch"), [(1, 1)]),
        # It sampled the same tokens itself, which is no fork.
        (3, None, [(0, 0), (1, 1)]),
        (4, (3, 0, "call"), [(0, 1), (1, 2)]),
    ]


def test_a_node_says_what_its_turn_was(tree):
    rows = tree(tree_group())
    assert rows[0]["nodes"][1] == {
        "turn": 1, "depth": 1, "tokens": 3, "reward": 0.0, "text": 'turn 1 go({"by": [12, 13, 14]})', "given": False,
    }  # fmt: skip
    assert [(row["agent"], row["reward"], row["rollout"]) for row in rows] == [
        ("", 1.0, 0), ("", 0.0, 1), ("", -1.0, 2), ("", 0.5, 3), ("helper/1", 0.0, 3),
    ]  # fmt: skip
    assert rows[2]["nodes"][0]["reward"] == -1.0


def test_leaves_of_an_agents_episode_fork_at_the_calls_they_share(tree):
    assert outline(tree(gateway_group())) == [
        (0, None, [(0, 0), (1, 1), (2, 2)]),
        (1, (0, 1, "branch"), [(0, 2)]),
        (2, (0, 0, "branch"), [(0, 1)]),
    ]


def test_sub_agents_hang_from_the_turns_that_started_them_though_they_end_first(tree):
    assert outline(tree(sub_agent_group())) == [
        (2, None, [(0, 0), (1, 1), (2, 2)]),
        (0, (2, 1, "call"), [(0, 2), (1, 3)]),
        (1, (0, 0, "call"), [(0, 3)]),
    ]


def test_plain_episodes_are_rows_of_their_own_and_a_group_that_is_not_there_has_none(tmp_path):
    table = EpisodeTable(make_run(tmp_path / "run", steps=1, groups=1))
    rows = table.tree(1, "g-t1-0")
    assert [row["parent"] for row in rows] == [None] * 4
    assert [len(row["nodes"]) for row in rows] == [2] * 4
    assert table.tree(1, "nobody") == table.tree(9, "g-t1-0") == []
