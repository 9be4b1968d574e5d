"""A real node in a thread: it registers, fetches the run, starts an environment service, reports it, and is lost."""

import asyncio
from pathlib import Path

import pytest

from asyncrl import __version__
from asyncrl.config import parse_config
from asyncrl.credentials import read_credentials
from asyncrl.errors import ConflictError, InputError, UnavailableError
from asyncrl.extensions.machines import node_host
from asyncrl.extensions.machines.messages import NODE_ROLES, Register, checked_arguments
from asyncrl.extensions.machines.node_host import LinkThread, NodeHost, _arguments
from asyncrl.extensions.machines.registry import Registry, create_registry_app
from asyncrl.extensions.machines.service import NodeService, create_node_app
from asyncrl.hosts.local import LocalHost
from asyncrl.launch.processes.health_probes import HttpProbe
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.launch.processes.supervise import Supervisor
from asyncrl.process_start import FORK_SERVER
from tests.app_thread import AppThread
from tests.waiting import wait_until

TOKEN = "the-token-of-this-run"
RUN = read_credentials(TOKEN)
CONFIG = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "run": {"threads": 1}}


class NodeThread:
    """A node in this process, as `serve_node` makes it."""

    def __init__(self, name, folder, launcher, roles=NODE_ROLES):
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.folder, self.roles = name, folder, roles
        self.start(launcher)

    def start(self, launcher):
        host = LocalHost(["--host", "127.0.0.1"])
        self.node = NodeService(self.name, self.folder, RUN, host, self.roles, launcher)
        self.app = AppThread(create_node_app(self.node, RUN), self.folder)
        self.node.url = self.app.url


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A launcher's registry with a model of two files, a node, and the run's processes.

    Of two further policies, one has a model of its own.
    """
    monkeypatch.setenv("ASYNCRL_TOKEN", TOKEN)
    # A node answers within seconds; a fork server may still be importing when it is asked first.
    monkeypatch.delenv(FORK_SERVER, raising=False)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes(range(256)) * 50_000)
    (model / "modeling.py").write_text("raise SystemExit")
    registry = Registry()
    launcher = AppThread(create_registry_app(registry, RUN.access("node")), tmp_path, "launcher")
    other = tmp_path / "other-model"
    other.mkdir()
    (other / "config.json").write_text('{"another": 1}')
    config = parse_config(CONFIG).model_dump(mode="json")
    registry.offer("one", config, str(model), {"b": (config, str(other)), "c": (config, str(model))})
    node = NodeThread("cpu", tmp_path / "node", launcher.url)
    wait_until(lambda: any(found.run == "one" for found in registry.nodes()), limit_s=60.0)
    link = LinkThread()
    host = NodeHost("cpu", registry, link, RUN.bearer("node"), tmp_path / "run")
    group = ProcessGroup(tmp_path / "run", hosts={"env": host, "second": host})
    yield launcher, node, host, group
    group.stop()
    host.close()
    link.close()
    node.app.close()
    launcher.close()


@pytest.mark.slow
def test_a_process_on_a_node_is_watched_like_one_of_this_machine(run, tmp_path):
    _, node, host, group = run
    fetched = tmp_path / "node" / "model"
    assert sorted(path.name for path in fetched.iterdir()) == ["config.json", "model.safetensors"]
    assert (fetched / "model.safetensors").read_bytes() == (
        tmp_path / "model" / "model.safetensors"
    ).read_bytes()

    # The launcher's own folder is replaced by the node's.
    child = group.start("env", ["serve", "env", "--folder", str(tmp_path / "run")], {})
    url = group.wait_ready(child, 60.0)
    assert child.alive()
    running = node.node._running["env"]
    assert str(tmp_path / "run") not in " ".join(_command(running.process.pid))

    running.process.kill()
    wait_until(lambda: not child.alive(), limit_s=60.0)
    assert child.ending() == "was killed by signal 9"
    group.restart(child)
    assert group.wait_ready(child, 60.0) == url
    assert (host.address, host.free_port() > 1023) == ("127.0.0.1", True)

    port = url.rpartition(":")[2]
    refused = group.start("second", ["serve", "env", "--port", port], {})
    wait_until(lambda: not refused.alive(), limit_s=60.0)
    assert refused.reason() == f"cannot listen on 127.0.0.1:{port}: Address already in use"
    with pytest.raises(UnavailableError, match="second ended with exit code 2: cannot listen on"):
        group.check()
    group.stop([refused])


@pytest.mark.slow
def test_processes_that_a_node_ended_while_it_heard_nothing_are_started_again(run):
    """As when its link is down for a moment, which the launcher does not take for the loss of the node."""
    _, node, host, group = run
    child = group.start("env", ["serve", "env"], {})
    url = group.wait_ready(child, 60.0)
    node.node._orphan_s = 0.0
    wait_until(lambda: not child.alive(), limit_s=60.0)
    node.node._orphan_s = 60.0
    assert child.ending() == "was killed by signal 9" and host.problem() == ""
    group.restart(child)
    assert group.wait_ready(child, 60.0) == url

    forgotten = node.node._running.pop("env")
    try:
        wait_until(lambda: not child.alive(), limit_s=60.0)
        group.kill(child)
    finally:
        forgotten.process.kill()
        forgotten.process.wait()
    group.restart(child)
    assert group.wait_ready(child, 60.0) == url


@pytest.mark.slow
def test_a_lost_node_takes_its_processes_with_it_and_may_return(run, monkeypatch):
    monkeypatch.setattr(node_host, "LOST_S", 1.0)
    launcher, node, host, group = run
    child = group.start("env", ["serve", "env"], {})
    group.wait_ready(child, 60.0)
    assert host.unreachable([node.app.url, "http://127.0.0.1:9"]).keys() == {"http://127.0.0.1:9"}

    node.app.close()
    wait_until(lambda: not child.alive(), limit_s=60.0)
    assert child.ending().startswith(f"was lost: node cpu at {node.app.url} has not answered for 1 s")
    with pytest.raises(UnavailableError):
        group.restart(child)

    node.start(launcher.url)
    wait_until(lambda: not host.problem(), limit_s=60.0)
    group.restart(child)
    group.wait_ready(child, 60.0)


@pytest.mark.slow
def test_a_further_policy_has_a_folder_and_a_model_of_its_own_on_a_node(run, tmp_path):
    _, node, host, group = run
    here, weights = node.node.folder, node.node._weights
    assert (here / "models" / "b" / "config.json").read_text() == '{"another": 1}'
    # The model of the run's own policy is not fetched twice.
    assert [path.name for path in (here / "models").iterdir()] == ["b"]
    for policy, model in (("b", here / "models" / "b"), ("c", here / "model")):
        folder = tmp_path / "run" / "policies" / policy
        name = f"{policy}-engine-0"
        argv = ["serve", "engine", "--folder", str(folder), "--model", "x", "--weights-dir", "y"]
        group.start(name, argv, host=host)
        running = node.node._running[name].process
        words = _command(running.pid)
        running.kill()
        own = here / "run" / "policies" / policy
        assert words[words.index("engine") + 1 :][:6] == [
            *("--folder", str(own), "--model", str(model)),
            *("--weights-dir", str(weights / f"policy-{policy}")),
        ]
        assert (own / "config.json").exists()
    # What its trainer touches there is touched in the policy's folder of the run.
    (here / "run" / "policies" / "b" / "endpoints" / "trainer-1.beat").touch()
    beat = tmp_path / "run" / "policies" / "b" / "endpoints" / "trainer-1.beat"
    beat.parent.mkdir(parents=True)
    wait_until(beat.exists, limit_s=60.0)
    assert not (tmp_path / "run" / "endpoints" / "trainer-1.beat").exists()
    argv = ["serve", "engine", "--folder", str(tmp_path / "run" / "policies" / "d")]
    with pytest.raises(ConflictError, match=r"its run has no policy 'd' of which something runs here"):
        group.start("d-engine-0", argv, host=host)


@pytest.fixture
def another(run, tmp_path):
    """A function that has one more node join the run."""
    _, _, _, group = run
    made = []

    def join(launcher, host):
        node = NodeThread("other", tmp_path / "other", launcher.url)
        made.append(node.app)
        registry = host._registry
        wait_until(lambda: [found.run for found in registry.nodes()] == ["one", "one"], limit_s=60.0)
        second = NodeHost("other", registry, host._link, RUN.bearer("node"), tmp_path / "run")
        made.append(second)
        return second

    yield join
    group.stop()
    for one in reversed(made):
        one.close()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["another node", "the head"])
def test_what_ran_on_a_lost_node_starts_elsewhere_and_the_lost_one_ends_it(
    run, another, tmp_path, monkeypatch, where
):
    """As a network that falls apart: the lost node goes on, without its launcher."""
    launcher, node, host, group = run
    head = LocalHost(["--host", "127.0.0.1"], "127.0.0.1")
    second = head if where == "the head" else another(launcher, host)
    group.elsewhere = lambda name: (second, {})
    child = group.start("env", ["serve", "env"], {})
    first_url = group.wait_ready(child, 60.0)
    left_behind = node.node._running["env"].process

    supervisor = Supervisor(group, tmp_path / "restarts.jsonl", 60.0, node_timeout_s=1.0)
    supervisor.watch(child, HttpProbe(child, "/healthz"), 60.0)
    node.node._orphan_s = 0.5
    monkeypatch.setattr(node_host, "LOST_S", 1.0)
    host._following.cancel()

    async def restarted():
        async with asyncio.timeout(120):
            while not supervisor.restarts() or not child.announced():
                await asyncio.sleep(0.1)

    asyncio.run(supervisor.run(restarted()))
    assert child.host is second
    # Both are on this machine: the address is kept.
    assert (child.url, child.earlier_urls) == (first_url, [])
    assert not second.serves_at("http://10.0.0.9:1")
    wait_until(lambda: left_behind.poll() is not None, limit_s=60.0)


def test_the_registry_refuses_what_would_be_two_nodes_of_one_name_and_other_versions():
    registry = Registry()
    first = Register(
        name="cpu", url="http://10.0.0.1:1", version=__version__, boot="a", gpus=0, roles=["env"]
    )
    registry.register(first)
    with pytest.raises(
        UnavailableError, match=r"already, at http://10\.0\.0\.1:1; give one of them another --name"
    ):
        registry.register(first.model_copy(update={"boot": "b"}))
    with pytest.raises(
        ConflictError, match=r"has asyncrl 0\.0\.0, the launcher .*; install the same version"
    ):
        registry.register(first.model_copy(update={"version": "0.0.0"}))


@pytest.mark.parametrize(
    ("role", "arguments", "refused"),
    [
        ("engine", {"--weights-dir": ["/"]}, "is not given '--weights-dir'"),
        ("engine", {"--main-port": ["1; true"]}, "--main-port must match"),
        ("env", {"--recipe": ["/tmp/mine.toml"]}, "is not given '--recipe'"),
        ("rollout", {"--buffer": ["file:///etc/passwd"]}, "--buffer must match"),
        ("rollout", {"--name": ["--folder"]}, "--name must match"),
        ("rollout", {"--policy": ["b=http://n1:1,/etc"]}, "--policy must match"),
        ("trainer", {"--main-address": ["a b"]}, "--main-address must match"),
    ],
)
def test_a_node_starts_known_roles_with_checked_arguments_only(role, arguments, refused):
    with pytest.raises(InputError, match=refused):
        checked_arguments(role, arguments)


def test_a_node_starts_engines_of_every_kind():
    parts = {"--nodes": ["2"], "--node-rank": ["1"], "--main-address": ["n1"], "--main-port": ["29000"]}
    words = checked_arguments("engine", {**parts})
    assert words == [
        *("--nodes", "2", "--node-rank", "1"),
        *("--main-address", "n1", "--main-port", "29000"),
    ]


def test_a_node_starts_workers_of_several_policies():
    policies = ["b=http://n1:1,http://n2:2/policies/b", "c=http://n1:3,http://n2:2/policies/c"]
    command = ["python", "-m", "asyncrl", "serve", "rollout", "--folder", "/runs/r", "--name", "rollout-0"]
    command += ["--policy", policies[0], "--policy", policies[1]]
    role, arguments, _ = _arguments(command)
    assert checked_arguments(role, arguments) == command[7:]


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
