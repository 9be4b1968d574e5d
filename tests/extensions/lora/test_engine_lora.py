"""A real vLLM server with adapters: each request has the log-probabilities of the trainer's forward pass under the
version it is tagged with, whatever else is in flight."""

import asyncio
import struct
from pathlib import Path

import aiohttp
import msgpack
import numpy as np
import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.errors import InputError
from asyncrl.extensions.lora.adapter import adapters
from asyncrl.generation import GenerateRequest
from asyncrl.services.engine.client import EngineClient, _encode, decode_generated
from asyncrl.train.models.checkpoint_form import published
from asyncrl.train.models.loading import load_policy
from asyncrl.weights.files import write_weights
from asyncrl.weights.folders import policy_weights
from asyncrl.weights.members import Members
from asyncrl.weights.position import write_committed
from tests.credentials import PACKED
from tests.engines import kill_and_see_all_end, serving
from tests.services.engine.test_engine import with_client

pytestmark = pytest.mark.slow
FIRST = 1
"""The version that is committed before the engine starts; version 0 is the base model."""
TOLERANCE = 5e-5
"""These large random adapters leave the trainer's own float32 log-probabilities up to 1e-5 from its float64 ones (1e-6
without an adapter), and the engine rounds in another order; another version's differ by more than `DIFFERENT`."""
DIFFERENT = 0.01


SECTIONS = {
    # Far fewer at once than a test asks for, so that some are under way however fast the machine is.
    "engine": {"max_model_len": 256, "max_num_seqs": 8},
    "lora": {"rank": 4, "alpha": 8},
    "policies": {
        "helpers": {"agents": ["helper"], "lora": {"rank": 2, "target_modules": ["q_proj", "o_proj"]}}
    },
}


@pytest.fixture(scope="module")
def config(tiny_model):
    return parse_config(
        {
            "model": {"path": tiny_model},
            "env": {"name": "gridworld"},
            "run": {"threads": 1},
            **SECTIONS,
        }
    )


@pytest.fixture(scope="module")
def policies(config, tiny_model):
    """The trainer's policy at versions 0 to 4."""
    return versions(tiny_model, config.lora, range(5))


@pytest.fixture(scope="module")
def helpers(config, tiny_model):
    """A further policy of the run, with smaller adapters on fewer layers, at versions 0 to 2."""
    return versions(tiny_model, config.policy("helpers").lora, range(3), seed=100)


def versions(model, lora, numbers, seed=0):
    found = {}
    for version in numbers:
        policy = load_policy(model, "float32", changes=adapters(lora, 0))
        generator = torch.Generator().manual_seed(seed + version)
        with torch.no_grad():
            for _, parameter in published(policy.model):
                if version:
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        found[version] = policy
    return found


@pytest.fixture(scope="module")
def started(policies, helpers, tiny_model, tmp_path_factory):
    """`(engine, folder of weights)`; the engine starts when version 1 of both policies is committed."""
    folder, weights = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("weights")
    for place, policy in ((weights, policies[FIRST]), (of_helpers(weights), helpers[FIRST])):
        place.mkdir(exist_ok=True)
        write_committed(place, write_weights(place, FIRST, published(policy.model), epoch=1))
    with serving(folder, tiny_model, weights, **SECTIONS) as child:
        yield child, weights


@pytest.fixture(scope="module")
def engine(started):
    """Address and folder of weights."""
    return started[0].url, started[1]


@pytest.fixture(scope="module")
def publish(engine, policies):
    _, weights = engine

    async def commit(client, version, file=None):
        file = file or write_weights(weights, version, published(policies[version].model), epoch=1)
        await client.request("weights/prepare", file.to_json())
        return await client.request("weights/commit", file.to_json())

    return commit


def of_helpers(weights):
    return Path(policy_weights(str(weights), "helpers"))


def prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 250, 30).astype(np.int32) for _ in range(count)]


@torch.no_grad()
def trainer_logp(policy, prompt, sampled):
    ids = torch.tensor(np.concatenate([prompt, sampled]))[None].long()
    mask = torch.arange(ids.shape[1])[None] >= len(prompt)
    return policy(ids, mask, 1.0)["logp"][0, len(prompt) :].numpy()


def check(policies, prompt, generated, version):
    assert set(generated.versions.tolist()) == {version}
    expected = trainer_logp(policies[version], prompt, generated.token_ids)
    np.testing.assert_allclose(generated.logprobs, expected, atol=TOLERANCE)
    for other in policies:
        if other != version:
            differs = np.abs(trainer_logp(policies[other], prompt, generated.token_ids) - expected)
            assert differs.max() > DIFFERENT


async def tagged(url, request, version):
    """Ask for one request under a version; return the answer's message."""
    body = msgpack.packb({"requests": [_encode(request) | {"version": version}]})
    async with (
        aiohttp.ClientSession(url, headers=PACKED) as http,
        http.post("/asyncrl/v1/generate", data=body) as response,
    ):
        (size,) = struct.unpack("<I", await response.content.readexactly(4))
        return msgpack.unpackb(await response.content.readexactly(size))


async def under_way(client, number, *flights):
    """Return once the engine holds so many requests, or has answered all of `flights`."""
    while not all(task.done() for flight in flights for task in flight):
        state = await client.state()
        if state["running"] + state["waiting"] >= number:
            return
        await asyncio.sleep(0.01)


def test_an_engine_that_starts_late_has_the_committed_adapter_before_its_first_answer(engine, policies):
    prompt = prompts(1)[0]
    request = GenerateRequest("first", prompt, 12, seed=0, min_version=FIRST)
    check(policies, prompt, with_client(engine[0], lambda client: client.generate(request)), FIRST)


def test_requests_of_four_versions_in_flight_at_once_keep_their_own(engine, policies, publish):
    url, weights = engine
    given = prompts(12, seed=1)
    # Written before, so that requests do not end meanwhile.
    files = {v: write_weights(weights, v, published(policies[v].model), epoch=1) for v in (2, 3)}

    async def scenario(client):
        base = [
            asyncio.create_task(tagged(url, GenerateRequest(f"base-{i}", p, 200, seed=i), 0))
            for i, p in enumerate(given)
        ]
        flights = []
        for version in (1, 2, 3):
            if version > FIRST:
                await publish(client, version, files[version])
            requests = [GenerateRequest(f"v{version}-{i}", p, 200, seed=i) for i, p in enumerate(given)]
            flights.append([asyncio.create_task(client.generate(r)) for r in requests])
            await under_way(client, 2, flights[-1])
        overlapped = sum(not task.done() for flight in [base, *flights] for task in flight)
        answers = [decode_generated(answer) for answer in await asyncio.gather(*base)]
        return overlapped, [answers, *[await asyncio.gather(*flight) for flight in flights]]

    overlapped, answers = with_client(url, scenario)
    assert overlapped > len(given)
    for version, flight in enumerate(answers):
        for prompt, generated in zip(given, flight, strict=True):
            check(policies, prompt, generated, version)


def test_a_commit_unloads_what_no_request_uses_and_a_tag_names_what_is_held(engine, policies, publish):
    url, weights = engine
    prompt = prompts(1, seed=2)[0]

    async def scenario(client):
        while (await client.state())["running"]:
            await asyncio.sleep(0.01)
        await publish(client, 4)
        kept = await tagged(url, GenerateRequest("kept", prompt, 12, seed=0), 3)
        gone = await tagged(url, GenerateRequest("gone", prompt, 12), 1)
        return kept, gone, await client.state()

    kept, gone, state = with_client(url, scenario)
    check(policies, prompt, decode_generated(kept), 3)
    assert "this engine holds [3, 4], got 1" in gone["error"]
    assert state["version"] == 4
    assert len(list(weights.glob("adapters-*/*"))) == 2


def test_a_further_policys_requests_are_served_by_its_own_adapters_at_its_own_version(
    engine, policies, helpers, publish
):
    url, weights = engine
    given = prompts(12, seed=4)
    file = write_weights(of_helpers(weights), 2, published(helpers[2].model), epoch=1)

    async def scenario(client):
        other = EngineClient(f"{url}/policies/helpers")
        try:
            # Both policies number their requests alike.
            flights = [ask(client, given), ask(other, given)]
            await under_way(client, len(given) + 1, *flights)
            for phase in ("weights/prepare", "weights/commit"):
                await other.request(phase, file.to_json())
            flights.append(ask(other, given))
            overlapped = sum(not task.done() for flight in flights for task in flight)
            answers = [await asyncio.gather(*flight) for flight in flights]
            return overlapped, answers, (await client.state())["version"], (await other.state())["version"]
        finally:
            await other.close()

    def ask(client, given):
        requests = [GenerateRequest(f"r{i}", prompt, 200, seed=i) for i, prompt in enumerate(given)]
        return [asyncio.create_task(client.generate(request)) for request in requests]

    # An engine has the committed adapter from its first answer on.
    with_client(url, lambda client: client.generate(GenerateRequest("first of all", given[0], 1)))
    before = with_client(url, lambda client: client.state())["version"]
    overlapped, answers, version, version_of_helpers = with_client(url, scenario)
    assert overlapped > len(given)
    assert (version, version_of_helpers) == (before, 2)
    for whose, number, flight in zip((policies, helpers, helpers), (before, 1, 2), answers, strict=True):
        for prompt, generated in zip(given, flight, strict=True):
            check(whose, prompt, generated, number)


def test_a_policy_that_an_engine_does_not_serve_is_refused_by_name(engine):
    client = f"{engine[0]}/policies/keepers"
    with pytest.raises(InputError, match=r"policy 'keepers': this engine serves \['helpers', 'main'\]"):
        with_client(client, lambda client: client.state())


def test_an_adapter_that_does_not_fit_is_refused_and_the_one_before_is_served_on(engine, policies):
    url, weights = engine
    prompt = prompts(1, seed=3)[0]
    wrong = [(name.replace("q_proj", "wq"), tensor) for name, tensor in published(policies[1].model)]
    file = write_weights(weights, 5, wrong, epoch=1)

    async def scenario(client):
        with pytest.raises(InputError, match="adapter of version 5: vLLM refuses it"):
            await client.request("weights/commit", file.to_json())
        return await client.generate(GenerateRequest("after", prompt, 12, seed=0)), await client.state()

    generated, state = with_client(url, scenario)
    check(policies, prompt, generated, 4)
    assert state["version"] == 4


def test_members_of_a_population_are_served_until_they_leave_it_also_those_of_before_the_start(
    engine, policies, publish
):
    """The engine has had no other adapter than that of version 4 for a while; members 1 and 2 are new to it."""
    url, weights = engine
    prompt = prompts(1, seed=5)[0]
    served = {6: [1, 2], 7: [2], 8: []}
    members = Members(weights, weights.parent / "opponents", lambda version: served[version])

    async def scenario(client):
        for version in (1, 2):
            file = write_weights(members.store, version, published(policies[version].model))
            assert file.version == version
        found = {}
        for version in (6, 7, 8):
            file = write_weights(weights, version, published(policies[3].model), epoch=1)
            members.note(file)
            await publish(client, version, file)
            for member in (0, 1, 2):
                request = GenerateRequest(f"m{version}-{member}", prompt, 12, seed=0, version=member)
                try:
                    found[version, member] = await client.generate(request)
                except InputError as error:
                    found[version, member] = str(error)
        return found

    found = with_client(url, scenario)
    for version, member in ((6, 0), (6, 1), (6, 2), (7, 0), (7, 2), (8, 0)):
        check(policies, prompt, found[version, member], member)
    # The newest one and the one before are held beside the members.
    assert "this engine holds [0, 2, 6, 7], got 1" in found[7, 1]
    assert "got 2" in found[8, 2]


def test_an_engine_whose_server_is_killed_ends_with_all_its_processes(started):
    """Last in this file, whose other tests need the engine."""
    kill_and_see_all_end(started[0], "api_server")
