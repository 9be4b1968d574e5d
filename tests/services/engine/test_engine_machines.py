"""One engine whose two ranks are on two machines, here two hosts that share nothing but the computer.

It starts once for all of it: its answers are those of one process, new weights reach both machines whatever carries
them, and when the machine without the server is lost the whole engine ends, is started again and catches up.
"""

import asyncio
import re
import tempfile
from pathlib import Path

import psutil
import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.errors import InputError
from asyncrl.extensions.collective_weights.carrier import CollectiveCarrier
from asyncrl.extensions.http_weights.carrier import HttpCarrier
from asyncrl.extensions.machines.spread_host import SpreadHost
from asyncrl.hosts.local import LocalHost
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.services.engine.client import EngineClient
from asyncrl.train.models.checkpoint_form import checkpoint_form
from asyncrl.weights.carrier import Carried
from asyncrl.weights.folders import remove_weights
from asyncrl.weights.publish import FilePublisher
from scripts.bench.slow_link import SourceBehindLink
from tests.credentials import RUN
from tests.engines import END_S, ENGINE
from tests.services.engine.test_engine_collective import change, disagreement
from tests.waiting import START_S, wait_until

pytestmark = pytest.mark.slow
TOLERANCE = 1e-5


@pytest.fixture(
    params=[{"tensor_parallel": 2}, {"tensor_parallel": 2, "pipeline_parallel": 2}],
    ids=["layers split", "stages"],
)
def engine(request, tiny_model, tmp_path):
    """`(group, process, folder of weights)` of an engine that starts."""
    # As short as a run's: in a longer one there is no room for the names of vLLM's sockets.
    weights = Path(tempfile.mkdtemp(prefix="asyncrl-"))
    over_two = {"nodes": 2, "weight_transfer": "http", **request.param}
    recipe = {"model": {"path": tiny_model}, "env": {"name": "gridworld"}, "run": {"threads": 1}}
    config = parse_config(recipe | {"engine": ENGINE | over_two})
    (tmp_path / "config.json").write_text(config.model_dump_json())
    host = SpreadHost()
    host.put([(LocalHost([], "127.0.0.1"), name, {}) for name in ("first", "second")])
    group = ProcessGroup(tmp_path, hosts={"engine": host})
    argv = [
        "serve",
        "engine",
        "--folder",
        str(tmp_path),
        "--model",
        tiny_model,
        "--weights-dir",
        str(weights),
    ]
    try:
        yield group, group.start("engine", argv), weights
    finally:
        group.stop()
        remove_weights(weights)


def load(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


async def off(client, policy, version):
    """The largest difference of any token's log-probability between the engine and the model."""
    return await disagreement([client], policy, version, policy.config.vocab_size)


def copies(weights):
    return sorted(weights.glob("staged-*/*/*"))


def test_its_answers_are_those_of_one_process_and_versions_reach_both_machines(engine, tiny_model):
    group, process, weights = engine
    group.wait_ready(process, START_S)
    policy = load(tiny_model)
    source = SourceBehindLink(RUN)
    by_group = CollectiveCarrier(torch.device("cpu"), timeout_s=20.0)
    over_http = HttpCarrier(source)

    async def publish(publisher, version):
        change(policy, version)
        file = publisher.write(version, checkpoint_form(policy, policy.named_parameters()))
        report = await publisher.publish(file)
        assert (report.failed, len(report.pause_s)) == ({}, 1)
        assert await off(*publisher.engines, policy, version) < TOLERANCE

    async def versions():
        client = EngineClient(process.url)
        publishers = [
            FilePublisher(weights, [client], 60.0, transport=Carried(one)) for one in (over_http, by_group)
        ]
        try:
            assert await off(client, policy, 0) < TOLERANCE
            await publish(publishers[0], 1)
            # Each machine has a copy of its own, of the newest version alone.
            assert [path.name for path in copies(weights)] == ["weights-00000001.safetensors"] * 2
            # It would offer its version again when the engine has another.
            await publishers[0].close()
            await publish(publishers[1], 2)
            assert [path.name for path in copies(weights)] == ["weights-00000002.safetensors"] * 2
            await damaged_on_the_way(client, publishers[1])
            await two_at_once(client, publishers[1])
        finally:
            for one in publishers:
                await one.close()
                one.transport.close()
            await client.close()

    async def damaged_on_the_way(client, publisher):
        """What a machine has received wrongly it fetches from the other one."""
        change(policy, 3)
        file = publisher.write(3, checkpoint_form(policy, policy.named_parameters()))
        assert await publisher.transport.carry(file, [client]) == {}
        for path in copies(weights):
            if path.name == "weights-00000003.safetensors" and not of_server(path, process):
                path.write_bytes(bytes(path.stat().st_size))
        await client.request("weights/prepare", file.to_json())
        await client.request("weights/commit", file.to_json())
        assert await off(client, policy, 3) < TOLERANCE

    async def two_at_once(client, publisher):
        """Each machine has both versions, whoever asks first, and a commit leaves none but its own."""
        files = []
        for version in (4, 5):
            change(policy, version)
            files.append(publisher.write(version, checkpoint_form(policy, policy.named_parameters())))
        await asyncio.gather(*(client.request("weights/prepare", file.to_json()) for file in files))
        await client.request("weights/commit", files[0].to_json())
        with pytest.raises(InputError, match="version 5 are no longer on all machines of the engine"):
            await client.request("weights/commit", files[1].to_json())
        assert (await client.state())["version"] == 4
        # Also notes it as the version that counts, for an engine that starts again.
        await FilePublisher(weights, [client]).publish(files[1])
        assert await off(client, policy, 5) < TOLERANCE

    asyncio.run(versions())

    second = process.popen.parts[1]
    members = [one for part in process.popen.parts for one in tree(part.pid)]
    shared = {path for one in members for path in shared_memory_of(one)}
    workers = [one for one in tree(second.pid) if not one.children() and "tracker" not in told(one)]
    workers[-1].kill()
    wait_until(lambda: not process.alive(), limit_s=END_S)
    assert process.ending() == "ended with exit code 1 on second"
    assert process.reason().startswith("engine: its workers on machine 1 have ended")
    group.restart(process)
    # Python's resource trackers end by themselves.
    wait_until(lambda: not [one for one in members if alive(one)], limit_s=END_S)
    group.wait_ready(process, START_S)
    assert shared and not [path for path in shared if path.exists()]

    async def caught_up():
        client = EngineClient(process.url)
        try:
            assert await off(client, policy, 5) < TOLERANCE
        finally:
            await client.close()

    asyncio.run(caught_up())
    members = [one for part in process.popen.parts for one in tree(part.pid)]
    shared = {path for one in members for path in shared_memory_of(one)}
    assert shared
    group.stop()
    wait_until(lambda: not [path for path in shared if path.exists()], limit_s=END_S)
    wait_until(lambda: not [one for one in members if alive(one)], limit_s=END_S)


def of_server(path, process):
    """Whether a copy is that of the server's machine."""
    pid = int(Path(path).parents[1].name.rpartition("-")[2])
    return pid in [one.pid for one in tree(process.popen.parts[0].pid)]


def shared_memory_of(process):
    """Return the segments of shared memory that a process has mapped, Python's and vLLM's."""
    names = re.findall(r"/dev/shm/(psm_\w+|vllm_dist_\S+)", Path(f"/proc/{process.pid}/maps").read_text())
    return [Path("/dev/shm", name) for name in names]


def told(process):
    return " ".join(process.cmdline())


def tree(pid):
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
