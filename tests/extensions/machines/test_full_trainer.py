"""A trainer that has lost a machine is started again on all of them after the next checkpoint."""

import asyncio
import sys
import time
from types import SimpleNamespace

import pytest

from asyncrl.config import parse_config
from asyncrl.extensions.machines.full_trainer import FullTrainer
from asyncrl.hosts.local import LocalHost
from asyncrl.launch.processes.health_probes import HeartbeatProbe
from asyncrl.launch.processes.supervise import Supervisor
from asyncrl.run.checkpoints import MARKER, VALUES, checkpoint_path, state_folder

BEATS = """
import os, pathlib, time
folder = pathlib.Path(FOLDER)
(folder / os.environ.get("READY", "ready")).touch()
while True:
    (folder / "0.beat").touch()
    time.sleep(0.05)
"""


class Room:
    """A cluster in which there is room from the moment that `found` is set."""

    found = None

    def said_trainer(self, name):
        return "2 of 2 ranks, on 2 of 2 machines"

    def trainer_room(self, name):
        return self.found

    def use(self, found, name):
        assert (found, name) == (self.found, "trainer")
        self.found = None
        return LocalHost([], "127.0.0.1"), {"GPUS": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 1])
def test_it_starts_again_on_all_machines_after_the_next_checkpoint_or_at_once_with_those_in_memory(
    process_group, tmp_path, every
):
    supervisor = Supervisor(process_group, tmp_path / "restarts.jsonl", 30.0)
    child = process_group.start("trainer", ["serve", "trainer"], ready=False)
    process_group.kill(child)
    child.command = [sys.executable, "-c", BEATS.replace("FOLDER", repr(str(tmp_path)))]
    process_group.restart(child)
    supervisor.watch(
        child, HeartbeatProbe(tmp_path / "ready", [tmp_path / "0.beat"], lambda: 0), 60.0, serving=False
    )
    sections = {
        "model": {"path": "m"},
        "env": {"name": "gridworld"},
        "train": {"memory_checkpoint_every": every},
    }
    roles = SimpleNamespace(trainer=child, folder=tmp_path, config=parse_config(sections))
    room, first = Room(), child.popen.pid
    full = FullTrainer(room, roles, supervisor)

    async def lose_and_gain():
        deadline = time.monotonic() + 60
        while not supervisor.serves(child):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert full.tick() == "", "no room yet"
        room.found = object()
        if not every:
            assert full.tick() == "" and full.tick() == "", (
                "what was trained since the last checkpoint would be lost"
            )
            whole = checkpoint_path(tmp_path / "checkpoints", 2)
            state_folder(whole).mkdir(parents=True)
            for file in (state_folder(whole) / VALUES, whole / MARKER):
                file.write_text("{}")
        assert full.tick() == "trainer: there is room again, it goes on with 2 of 2 ranks, on 2 of 2 machines"
        while not supervisor.serves(child):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    asyncio.run(supervisor.run(lose_and_gain()))
    assert child.popen.pid != first and child.env["GPUS"] == "1"
    assert supervisor.restarts() == {"trainer": 1}
    assert "was ended to use all of its machines again" in (tmp_path / "restarts.jsonl").read_text()
