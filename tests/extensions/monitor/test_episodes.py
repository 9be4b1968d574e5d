"""Trajectories are found, filtered and opened in the Parquet files of a run."""

import dataclasses
import io
import json

import pytest

from asyncrl.data.table import TrajectoryTable
from asyncrl.errors import InputError
from asyncrl.extensions.monitor.episodes import EpisodeTable
from asyncrl.images import data_uri, image_key
from asyncrl.types import PlacedImage
from tests.run.folders import make_run, talking
from tests.train.factories import group, trajectory
from tests.vision import picture


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", steps=3, groups=2)


def found(table, **filters):
    page = table.page(filters, "step", False)
    return [(row["step"], row["task"], row["episode_index"]) for row in page["rows"]]


def test_all_trajectories_are_listed_page_by_page(run):
    table = EpisodeTable(run)
    pages = [table.page({}, "step", False, offset, 10) for offset in (0, 10, 20)]
    assert [page["total"] for page in pages] == [24, 24, 24]
    assert [len(page["rows"]) for page in pages] == [10, 10, 4]
    seen = {(row["group"], row["episode_index"]) for page in pages for row in page["rows"]}
    assert len(seen) == 24


def test_a_row_says_how_long_its_trajectory_is(run):
    row = EpisodeTable(run).page({"group": "g-t1-0"}, "episode_index", False)["rows"][1]
    whole = trajectory("t1-0", 1)
    assert (row["num_turns"], row["num_sampled"], row["num_tokens"]) == (2, 6, len(whole.token_ids))
    assert (row["reward"], row["success"], row["version_admitted"], row["wall_s"]) == (1.0, True, 0, 2.0)


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"min_reward": "0.6"}, 12),
        ({"max_reward": "0.4"}, 6),
        ({"min_step": "2", "max_step": "2"}, 8),
        ({"success": "false"}, 12),
        ({"success": "true", "min_version_admitted": "2"}, 4),
        ({"env": "gridworld", "status": "finished"}, 24),
        ({"env": "textgame"}, 0),
        ({"text": "i go south"}, 6),
        ({"text": '"west"'}, 6),
        ({"text": "%"}, 0),
    ],
)
def test_filters_keep_what_they_say(run, filters, count):
    assert EpisodeTable(run).page(filters)["total"] == count


def test_rows_come_in_the_order_asked_for(run):
    rows = EpisodeTable(run).page({}, "reward", True)["rows"]
    rewards = [row["reward"] for row in rows]
    assert rewards == sorted(rewards, reverse=True)
    assert [row["step"] for row in rows][:6] == [3, 3, 3, 3, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"colour": "red"},), "no filter 'colour'"),
        (({"min_reward": "high"},), "min_reward: must be a number, got 'high'"),
        (({}, "reward; DROP TABLE episodes"), "sort: must be one of"),
        (({}, "step", True, 0, 100000), "limit must be from 1 to 500"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(run, arguments, message):
    with pytest.raises(InputError, match=message):
        EpisodeTable(run).page(*arguments)


def test_steps_that_a_run_adds_and_repeats_are_seen(run):
    table = EpisodeTable(run)
    assert table.page({})["total"] == 24
    written = TrajectoryTable(run / "trajectories")
    assert table.page({"text": "i go south"})["total"] == 6
    written.write(4, [talking(group("t4-0", [0.0, 1.0, 0.5], 3))])
    assert table.page({})["total"] == 27
    assert table.page({"text": "i go south"})["total"] == 7
    assert table.page({"text": "i go south", "min_step": "3"})["total"] == 3
    written.write(3, [talking(group("again", [0.0, 1.0, 1.0], 2))])
    assert found(table, min_step="3") == [
        (3, "again", 0),
        (3, "again", 1),
        (3, "again", 2),
        (4, "t4-0", 0),
        (4, "t4-0", 1),
        (4, "t4-0", 2),
    ]
    (run / "trajectories" / "step-000001.parquet").unlink()
    assert table.page({})["total"] == 14


def test_an_episode_comes_with_its_tokens_messages_and_siblings(run):
    episode = EpisodeTable(run).episode(2, "g-t2-1", 3)
    whole = trajectory("t2-1", 3)
    assert episode["token_ids"] == whole.token_ids.tolist()
    assert episode["loss_mask"] == whole.loss_mask.tolist()
    assert [message["role"] for message in episode["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert episode["messages"][1]["tool_calls"] == [
        {"id": "c1", "name": "move", "arguments": '{"to": "west"}'}
    ]
    assert [row["episode_index"] for row in episode["siblings"]] == [0, 1, 2, 3]
    assert [row["info"]["agent"] for row in episode["siblings"]] == ["agent0", "agent1", "agent0", "agent1"]


@pytest.mark.parametrize("key", [(9, "g-t2-1", 3), (2, "nobody", 3), (2, "g-t2-1", 9)])
def test_an_episode_that_is_not_there_is_none(run, key):
    assert EpisodeTable(run).episode(*key) is None


def test_a_run_without_trajectories_has_none(tmp_path):
    table = EpisodeTable(make_run(tmp_path / "run", steps=0))
    assert table.page({"text": "north"}) == {"total": 0, "rows": []}
    assert table.choices() == {"env": [], "status": [], "failure": []}


def test_the_images_of_a_trajectory_come_with_it_once_each(tmp_path):
    file = io.BytesIO()
    picture(0).save(file, "PNG")
    data = file.getvalue()
    key = image_key(data)
    places = (PlacedImage(0, 1, key, data), PlacedImage(1, 2, key, data))
    played = group("t0", [0.0, 1.0])
    seen = dataclasses.replace(played.trajectories[0], extras={"images": places})
    shown = dataclasses.replace(played, trajectories=(seen, played.trajectories[1]))
    TrajectoryTable(tmp_path / "trajectories").write(1, [shown])
    table = EpisodeTable(tmp_path)
    name = table.page({})["rows"][0]["group"]
    whole, text = (table.episode(1, name, index) for index in (0, 1))
    assert whole["image_files"] == {key: data_uri(data)}
    assert [(place["start"], place["key"]) for place in whole["images"]] == [(0, key), (1, key)]
    assert text["image_files"] == {}
    json.dumps(whole)
