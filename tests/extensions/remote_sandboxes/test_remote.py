"""The remote backends against a cloud on the loopback interface: the contract, shortened to what crosses the wire."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
import time
from typing import Any

import pytest

from asyncrl.errors import ConfigError, ConflictError, InfrastructureError, InputError
from asyncrl.extensions.remote_sandboxes.cluster import find_cluster
from asyncrl.extensions.remote_sandboxes.kubernetes import exit_status
from asyncrl.sandbox.backends import backend_class
from asyncrl.sandbox.protocol import Mount, ReadEnd, SandboxSpec
from tests.extensions.remote_sandboxes import sandbox_cloud, sandbox_sdks
from tests.sandbox.conftest import run_async

REMOTE = ["kubernetes", "e2b", "daytona", "modal"]
pytestmark = pytest.mark.skipif(
    bool(sandbox_cloud.missing()), reason=f"loopback cloud: {sandbox_cloud.missing()}"
)


@pytest.fixture
def in_cloud(tmp_path, monkeypatch):
    """Run `body(box, cloud)` in a session of a backend whose provider is the loopback cloud."""

    def run(backend, body, spec=None, token="secret"):
        async def whole():
            cloud = sandbox_cloud.Cloud()
            await cloud.start()
            config = {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "lab"}}],
                "clusters": [{"name": "c", "cluster": {"server": cloud.url}}],
                "users": [{"name": "u", "user": {"token": token}}],
            }
            (tmp_path / "config").write_text(json.dumps(config))
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
            if backend != "kubernetes":
                monkeypatch.setitem(sys.modules, backend, getattr(sandbox_sdks, backend)(cloud.url))
            box = backend_class(backend)()
            try:
                await box.start(spec or SandboxSpec())
                return await body(box, cloud)
            finally:
                await box.stop()
                assert not cloud.machines, "the machine was not removed"
                assert not cloud.policies
                await cloud.stop()

        return run_async(whole, timeout_s=120)

    return run


@pytest.fixture(params=REMOTE)
def backend(request):
    return request.param


def test_a_program_gives_its_output_and_status(in_cloud, backend):
    async def body(box, cloud):
        return await box.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])

    result = in_cloud(backend, body)
    assert (result.returncode, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


def test_code_environment_folder_and_input_arrive(in_cloud, backend):
    async def body(box, cloud):
        await box.write("sub/x", b"")
        code = (
            "import os; print(sum(map(int, input().split())), os.environ['A'], os.environ['B'], os.getcwd())"
        )
        first = await box.exec(code=code, stdin=b"2 3\n", env={"B": "two words"})
        second = await box.exec(["pwd"], cwd="sub")
        return first, second

    first, second = in_cloud(backend, body, SandboxSpec(env={"A": "1"}))
    assert first.stdout == b"5 1 two words /work\n", first
    assert second.stdout == b"/work/sub\n"


def test_input_of_a_megabyte_arrives_whole(in_cloud, backend):
    async def body(box, cloud):
        return await box.exec(["wc", "-c"], stdin=b"x" * 1_000_000)

    assert in_cloud(backend, body).stdout.strip() == b"1000000"


def test_the_deadline_ends_a_program(in_cloud, backend):
    async def body(box, cloud):
        started = time.monotonic()
        result = await box.exec(["sh", "-c", "echo first; sleep 60"], timeout_s=1)
        return result, time.monotonic() - started, await box.exec(["echo", "again"])

    result, took, after = in_cloud(backend, body)
    assert result.timed_out
    assert result.stdout == b"first\n"
    assert took < 20
    assert after.stdout == b"again\n"


def test_long_output_is_cut(in_cloud, backend):
    async def body(box, cloud):
        return await box.exec(["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' a"], max_output_bytes=1000)

    result = in_cloud(backend, body)
    assert result.stdout == b"a" * 1000
    assert result.truncated


def test_a_missing_program_is_127(in_cloud, backend):
    async def body(box, cloud):
        return await box.exec(["no-such-program"])

    assert in_cloud(backend, body).returncode == 127


def test_files_pass_both_ways_and_bad_paths_are_refused(in_cloud, backend):
    text = "text with \u00fcmlauts\n".encode() * 3

    async def body(box, cloud):
        await box.write("a/b", text)
        await box.exec(["sh", "-c", "ln -s /etc link; ln -s a/b file; mkdir folder"])
        for path in ("../x", "/etc/passwd", "link/hostname", "file", "folder", "missing", ""):
            with pytest.raises(InputError):
                await box.read(path)
        with pytest.raises(InputError, match="long"):
            await box.read("a/b", max_bytes=10)
        with pytest.raises(InputError):
            await box.write("link/x", b"x")
        return await box.read("a/b")

    assert in_cloud(backend, body) == text


def test_a_persistent_program_keeps_its_state(in_cloud, backend):
    async def body(box, cloud):
        shell = await box.open_process(["bash"])
        await shell.send(b"value=41; echo ready\n")
        first = await shell.read_until(b"ready\n", 20)
        await shell.send(b"echo $((value + 1)); echo end >&2\n")
        second = await shell.read_until(b"end\n", 20)
        await shell.send(b"exit 7\n")
        rest = await shell.read_until(b"never", 20)
        status = await shell.wait(20)
        other = await box.open_process(["sleep", "100"])
        await asyncio.sleep(0.2)
        await other.kill()
        return first, second, rest, status

    first, second, rest, status = in_cloud(backend, body)
    assert first.data == b"ready\n"
    assert second.data == b"42\nend\n"
    assert rest.end is ReadEnd.CLOSED
    assert status == 7


def test_after_stop_nothing_works(in_cloud, backend):
    async def body(box, cloud):
        await box.stop()
        with pytest.raises(ConflictError):
            await box.exec(["true"])

    in_cloud(backend, body)


def test_mounts_are_refused_by_name(in_cloud, backend):
    async def body(box, cloud):
        raise AssertionError("started")

    with pytest.raises(ConfigError, match="mounts"):
        in_cloud(backend, body, SandboxSpec(mounts=(Mount("/usr", "/x"),)))


def test_a_pod_is_locked_down(in_cloud):
    async def body(box, cloud):
        (pod,), (policy,) = cloud.bodies.values(), cloud.policies.values()
        return pod, policy

    pod, policy = in_cloud("kubernetes", body)
    container = pod["spec"]["containers"][0]
    context = container["securityContext"]
    assert context["runAsNonRoot"]
    assert not context["allowPrivilegeEscalation"]
    assert context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["activeDeadlineSeconds"] > 0
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy["spec"]
    assert policy["spec"]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]


def test_a_refused_token_is_an_infrastructure_error(in_cloud):
    async def body(box, cloud):
        raise AssertionError("started")

    with pytest.raises(InfrastructureError, match="401"):
        in_cloud("kubernetes", body, token="wrong")


@pytest.mark.parametrize("name", ["e2b", "daytona", "modal"])
def test_a_missing_library_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)

    async def body():
        return await backend_class(name).probe()

    found = run_async(body)
    assert not found.works
    assert f"pip install {name}" in found.reason


def test_no_cluster_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="KUBECONFIG"):
        find_cluster()
    (tmp_path / "broken").write_text("contexts: []\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
    with pytest.raises(ConfigError, match="not a complete kubeconfig"):
        find_cluster()


def test_the_end_of_a_pods_program_is_read_from_its_status():
    causes = {"causes": [{"reason": "ExitCode", "message": "42"}]}
    assert exit_status({"status": "Success"}) == 0
    assert exit_status({"status": "Failure", "details": causes}) == 42
    assert (
        exit_status({"status": "Failure", "message": 'exec: "x": executable file not found in $PATH'}) == 127
    )
    with pytest.raises(InfrastructureError, match="container gone"):
        exit_status({"status": "Failure", "message": "container gone"})


CALLS = {
    "e2b": {
        "AsyncSandbox.create": {"template", "timeout", "allow_internet_access"},
        "AsyncSandbox.kill": set(),
        "sandbox_async.commands.command:Commands.run": {
            *("cmd", "background", "user", "cwd", "on_stdout", "on_stderr", "stdin", "timeout"),
        },
        "AsyncCommandHandle.send_stdin": {"data"},
        "AsyncCommandHandle.close_stdin": set(),
        "AsyncCommandHandle.wait": set(),
        "AsyncCommandHandle.kill": set(),
    },
    "daytona": {
        "AsyncDaytona.create": {"params"},
        "AsyncDaytona.delete": {"sandbox"},
        "AsyncDaytona.close": set(),
        "_async.process:AsyncProcess.exec": {"command"},
        "_async.process:AsyncProcess.create_session": {"session_id"},
        "_async.process:AsyncProcess.delete_session": {"session_id"},
        "_async.process:AsyncProcess.execute_session_command": {"session_id", "req"},
        "_async.process:AsyncProcess.get_session_command": {"session_id", "command_id"},
        "_async.process:AsyncProcess.send_session_command_input": {"session_id", "command_id", "data"},
        "_async.process:AsyncProcess.get_session_command_logs_async": {
            "session_id",
            "on_stdout",
            "on_stderr",
        },
    },
    "modal": {
        "App.lookup.aio": {"name", "create_if_missing"},
        "Sandbox.create.aio": {"app", "image", "timeout", "block_network", "memory"},
        "Image.from_registry": {"tag"},
        "Image.debian_slim": set(),
    },
}


@pytest.mark.parametrize("library", sorted(CALLS))
def test_the_providers_library_has_the_calls_that_are_made(library):
    """The stand-ins are only as good as this: it runs where the library is installed."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    for name, parameters in CALLS[library].items():
        module, _, path = name.rpartition(":")
        found: Any = importlib.import_module(f"{library}.{module}" if module else library)
        for part in path.split("."):
            found = getattr(found, part)
        missing = parameters - set(inspect.signature(found).parameters)
        assert not missing, name
