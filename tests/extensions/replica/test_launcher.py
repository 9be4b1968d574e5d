"""A buffer on a node leaves its ledger in the run's folder: its replica begins with it and becomes it."""

import sqlite3

import pytest

from asyncrl.buffer.store import LEDGER
from asyncrl.config import parse_config
from asyncrl.extensions.replica.launcher import BufferOnNode
from asyncrl.extensions.replica.replica import FOLDER
from asyncrl.jsonfile import write_json
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.launch.roles.buffer_place import BufferPlace, buffer_place, settle_ledger
from tests.buffer.factories import ledger
from tests.waiting import START_S

PLAIN = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


def num_tasks(path):
    return sqlite3.connect(path).execute("SELECT COUNT(*) FROM tasks").fetchone()[0]


@pytest.fixture
def run(tmp_path):
    """A run's folder with a ledger of eight tasks, which nobody has open."""
    ledger(tmp_path / LEDGER, count=8).close()
    return tmp_path


def test_a_recipe_says_where_its_buffer_keeps_the_ledger(tmp_path):
    kinds = [
        type(buffer_place(parse_config(PLAIN | {"buffer": {"machine": machine}}), tmp_path))
        for machine in ("head", "node")
    ]
    assert kinds == [BufferPlace, BufferOnNode]


@pytest.mark.slow
def test_the_replica_service_is_started_first_and_the_buffer_told_of_it(tmp_path):
    write_json(tmp_path / "config.json", parse_config(PLAIN).model_dump(mode="json"))
    group, place = ProcessGroup(tmp_path), BufferOnNode(tmp_path)
    try:
        assert place.start(group, "red-", START_S) == ["--replica", place.front.url]
        assert [(one.name, one.alive()) for one in group.processes] == [("red-replica", True)]
    finally:
        group.stop()
    plain = BufferPlace(tmp_path)
    assert (plain.start(group, "", START_S), plain.front) == ([], None)


def test_what_is_in_the_replica_becomes_the_ledger_also_of_a_launch_with_other_settings(run):
    place = BufferOnNode(run)
    place.prepare()
    (run / LEDGER).unlink()
    settle_ledger(run)
    assert num_tasks(run / LEDGER) == 8
    assert not (run / FOLDER).exists()
    # Nothing is left to do.
    settle_ledger(run)
    assert num_tasks(run / LEDGER) == 8


def test_a_first_launch_has_no_ledger_to_begin_with(tmp_path):
    BufferOnNode(tmp_path).prepare()
    assert not (tmp_path / FOLDER).exists()
