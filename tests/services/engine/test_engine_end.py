"""What is left when an engine is killed: nothing."""

import tempfile
import time
from pathlib import Path

import psutil
import pytest

from asyncrl.config import parse_config
from asyncrl.launch.process_group import ProcessGroup

pytestmark = pytest.mark.slow
DEADLINE_S = 20.0


@pytest.mark.parametrize("victim", ["serve engine", "api_server"])
def test_an_engine_that_is_killed_takes_all_its_processes_along(tiny_model, tmp_path, victim):
    engine = {"max_model_len": 256, "max_num_seqs": 8}
    data = {
        "model": {"path": tiny_model},
        "env": {"name": "gridworld"},
        "run": {"threads": 1},
        "engine": engine,
    }
    config = parse_config(data)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    process_group = ProcessGroup(tmp_path)
    try:
        child = process_group.start(
            "engine", ["serve", "engine", "--folder", str(tmp_path), "--model", tiny_model]
        )
        process_group.wait_ready(child, 180)
        top = psutil.Process(child.popen.pid)
        members = [top, *top.children(recursive=True)]
        named = [p for p in members if victim in " ".join(p.cmdline())]
        assert len(members) >= 3, [p.cmdline() for p in members]
        # One that was spawned would have imported all of vLLM anew, for half of the time in which an engine starts.
        assert not [p for p in members if "spawn_main" in " ".join(p.cmdline())]
        named[0].kill()
        end = time.monotonic() + DEADLINE_S
        while (left := [p for p in members if alive(p)]) and time.monotonic() < end:
            child.popen.poll()
            time.sleep(0.1)
        assert not left, [p.name() for p in left]
    finally:
        process_group.stop()


def test_an_engine_that_is_stopped_leaves_no_socket_and_no_file(tiny_model, tmp_path):
    engine = {"max_model_len": 256, "max_num_seqs": 8}
    data = {
        "model": {"path": tiny_model},
        "env": {"name": "gridworld"},
        "run": {"threads": 1},
        "engine": engine,
    }
    config = parse_config(data)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    temporary = Path(tempfile.mkdtemp(prefix="asyncrl-"))  # short: it is part of sockets' paths
    process_group = ProcessGroup(tmp_path)
    argv = ["serve", "engine", "--folder", str(tmp_path), "--model", tiny_model]
    try:
        child = process_group.start("engine", argv, {"TMPDIR": str(temporary)})
        process_group.wait_ready(child, 180)
        assert [path for path in temporary.rglob("*") if path.is_socket()]
    finally:
        process_group.stop()
    temporary.rmdir()


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
