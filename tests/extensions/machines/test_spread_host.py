"""Several hosts that act as one: each part is told its place, and the process ends with any of them."""

import pytest

from asyncrl.extensions.machines.spread_host import SpreadHost
from asyncrl.hosts.host import Start
from asyncrl.hosts.local import LocalHost
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.process_start import FORK_SERVER
from tests.waiting import wait_until

SHELL = ["sh", "-c", 'echo "$@"; case "$*" in *"$END"*) exit 7;; esac; sleep 60', "part"]


@pytest.fixture
def host():
    made = SpreadHost()
    made.put(
        [
            (LocalHost(["--host", "127.0.0.1"], "127.0.0.1"), "first", {"GPUS": "0"}),
            (LocalHost(["--host", "127.0.0.2"], "127.0.0.2"), "second", {"END": "--node-rank 1"}),
        ]
    )
    return made


def test_each_part_is_told_its_place_and_where_all_meet_and_the_end_of_one_is_that_of_all(host, tmp_path):
    log = tmp_path / "log"
    process = host.start(Start("engine", SHELL, log, tmp_path / "ready", {"END": "none"}))
    wait_until(lambda: process.poll() is not None, limit_s=60)
    assert (process.poll(), host.ended_on(process)) == (7, "second")
    assert process.parts[0].poll() is None
    host.kill(process, 30)
    assert all(part.poll() is not None for part in process.parts)
    first, second = sorted(log.read_text().splitlines(), key=lambda line: line.rpartition(" ")[2])
    assert first.startswith("--host 127.0.0.1 --nodes 2 --main-address 127.0.0.1 --main-port ")
    assert second.startswith("--host 127.0.0.2 --nodes 2 --main-address 127.0.0.1 --main-port ")
    assert first.removesuffix("0").split()[2:] == second.removesuffix("1").split()[2:]


def test_a_part_moves_to_another_host_and_the_address_is_that_of_the_first(host, tmp_path):
    assert host.address == "127.0.0.1"
    assert host.serves_at("http://127.0.0.1:80") and not host.serves_at("http://127.0.0.2:80")
    kept = [(one, name, env) for one, name, env in zip(host.hosts, host.names, host.env, strict=True)]
    host.put([(LocalHost([], "127.0.0.3"), "third", {"END": "--node-rank 0"}), kept[1]])
    assert host.address == "127.0.0.3"
    process = host.start(Start("trainer", SHELL, tmp_path / "log"))
    wait_until(lambda: process.poll() is not None and process.parts[1].poll() is not None, limit_s=60)
    # A process that announces no address is not told where to listen.
    assert "--host" not in (tmp_path / "log").read_text()
    assert host.ended_on(process) == "third"


@pytest.mark.slow
def test_the_console_names_the_machine_on_which_a_process_has_ended(host, tmp_path, monkeypatch):
    monkeypatch.delenv(FORK_SERVER, raising=False)
    (tmp_path / "config.json").write_text('{"model": {"path": "m"}, "env": {"name": "gridworld"}}')
    group = ProcessGroup(tmp_path, hosts={"env": host})
    try:
        # An environment service has no such options.
        child = group.start("env", ["serve", "env", "--folder", str(tmp_path)])
        wait_until(lambda: not child.alive(), limit_s=60)
        # Both end so, one of them first.
        assert child.ending() in ("ended with exit code 2 on first", "ended with exit code 2 on second")
    finally:
        group.stop()
