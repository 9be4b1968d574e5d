"""The real vLLM server behind our client: exact log-probabilities, versions, in-flight updates, refusals."""

import asyncio
import dataclasses
import re
import socket
import subprocess
import sys
import time
from functools import partial

import aiohttp
import httpx
import numpy as np
import pytest
import torch
import yarl
from transformers import AutoModelForCausalLM

from asyncrl.credentials import authorization
from asyncrl.errors import ConfigError, InfrastructureError, InputError
from asyncrl.generation import GenerateRequest
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.service import EngineOptions, reserved_port, serve_engine
from asyncrl.weights.files import write_weights
from tests.app_thread import free_port
from tests.credentials import AUTHORIZED, PACKED, RUN, TOKEN
from tests.engines import ENGINE

pytestmark = pytest.mark.slow
TOLERANCE = 1e-5
"""The promise is 1e-4; float32 on one machine does far better."""


def load(path, noise=0.0, seed=0):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * noise)
    return model


@torch.no_grad()
def token_logp(model, context, sampled, temperature=1.0):
    ids = torch.tensor(np.concatenate([context, sampled]))[None].long()
    logp = torch.log_softmax(model(ids).logits[0].float() / temperature, -1)
    return np.array([logp[len(context) - 1 + t, token] for t, token in enumerate(sampled)])


def contexts(count, length, vocab_size, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocab_size, length).astype(np.int32) for _ in range(count)]


def with_client(url, scenario):
    async def run():
        client = EngineClient(url)
        try:
            return await scenario(client)
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.fixture
def published(engine_url, engine_weights, tiny_model):
    """Commits the next version with other weights; returns (model, version) of before and after."""

    async def current(client):
        return (await client.state())["version"]

    base = with_client(engine_url, current)
    old, new = load(tiny_model, 0.02, seed=base), load(tiny_model, 0.02, seed=base + 1)
    files = [
        write_weights(engine_weights, base + 1 + i, m.named_parameters()) for i, m in enumerate((old, new))
    ]

    async def commit(client, file):
        await client.request("weights/prepare", file.to_json())
        return await client.request("weights/commit", file.to_json())

    with_client(engine_url, lambda client: commit(client, files[0]))
    return old, new, files[1], commit


class Counting(EngineClient):
    """Notes how many requests each of its calls carries."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches = []

    async def _call(self, batch):
        self.batches.append(len(batch))
        await super()._call(batch)


def test_turns_that_are_due_before_the_next_call_may_be_made_are_sent_together(engine_url):
    async def scenario():
        client = Counting(engine_url, batch_delay_s=2.0)
        try:
            answers = []
            for i, prompt in enumerate(contexts(4, 20, 200)):
                answers.append(asyncio.create_task(client.generate(GenerateRequest(f"due-{i}", prompt, 4))))
                await asyncio.sleep(0.05)
            return client.batches, [len(answer.token_ids) for answer in await asyncio.gather(*answers)]
        finally:
            await client.close()

    batches, lengths = asyncio.run(scenario())
    assert min(lengths) > 0
    assert batches == [1, 3]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_every_sampled_token_has_the_log_probability_a_forward_pass_gives(engine_url, published, temperature):
    model = published[0]
    prompts = contexts(8, 40, model.config.vocab_size)

    async def scenario(client):
        requests = [
            GenerateRequest(f"lp-{temperature}-{i}", p, 24, temperature) for i, p in enumerate(prompts)
        ]
        return await asyncio.gather(*(client.generate(r) for r in requests))

    for prompt, generated in zip(prompts, with_client(engine_url, scenario), strict=True):
        expected = token_logp(model, prompt, generated.token_ids, temperature)
        np.testing.assert_allclose(generated.logprobs, expected, atol=TOLERANCE)


async def are_running(client, number):
    """Return once the engine works on so many requests."""
    async with asyncio.timeout(60):
        while (await client.state())["running"] < number:
            await asyncio.sleep(0.005)


def begin_all(client, prompts, name, max_tokens):
    """Start a request for each prompt."""
    requests = [GenerateRequest(f"{name}-{i}", p, max_tokens) for i, p in enumerate(prompts)]
    return [asyncio.create_task(client.generate(request)) for request in requests]


def test_sequences_that_cross_an_update_in_flight_match_the_model_of_each_span(engine_url, published):
    old, new, file, commit = published
    prompts = contexts(24, 40, old.config.vocab_size, seed=1)

    async def scenario(client):
        begin = partial(begin_all, client, prompts)
        # An engine's first requests take longer than later ones.
        await asyncio.gather(*begin("first", 4))
        # As long as a tenth of the turns takes on this machine now.
        started = time.monotonic()
        await asyncio.gather(*begin("tenth", 20))
        tasks = begin("cross", 200)
        await asyncio.sleep(time.monotonic() - started)
        await commit(client, file)
        return await asyncio.gather(*tasks)

    results = with_client(engine_url, scenario)
    crossed = [g for g in results if len(set(g.versions.tolist())) > 1]
    assert len(crossed) >= 12
    for prompt, generated in zip(prompts, results, strict=True):
        before, after = (token_logp(m, prompt, generated.token_ids) for m in (old, new))
        expected = np.where(generated.versions == file.version, after, before)
        np.testing.assert_allclose(generated.logprobs, expected, atol=TOLERANCE)
        assert set(generated.versions.tolist()) <= {file.version - 1, file.version}


@torch.no_grad()
def logp_over_old_kv(old, new, prompt, sampled, num_old):
    """Log-probabilities where `old` computed what came before the sampled token `num_old`, and `new` the rest."""
    ids = torch.tensor(np.concatenate([prompt, sampled]))[None].long()
    # The last token that the old model sampled was fed to the new one.
    fed = len(prompt) + num_old - 1
    before = old(ids[:, :fed], use_cache=True)
    after = new(ids[:, fed:], past_key_values=before.past_key_values)
    logp = torch.log_softmax(torch.cat([before.logits, after.logits], 1)[0].float(), -1)
    return np.array([logp[len(prompt) - 1 + t, token] for t, token in enumerate(sampled)])


def test_requests_that_keep_their_kv_match_the_new_weights_over_it_and_no_other_request_uses_it(
    engine_url, published
):
    old, new, file, _ = published
    # Longer than a block of the cache, which others could find.
    prompts = contexts(12, 140, old.config.vocab_size, seed=9)

    async def scenario(client):
        begin = partial(begin_all, client, prompts)
        await client.request("weights/prepare", file.to_json())
        # More than run at once: whenever the commit comes, it meets some in the middle.
        running = begin_all(client, prompts * 10, "kv-running", 100)
        await are_running(client, 12)
        commit = asyncio.create_task(client.request("weights/commit", file.to_json() | {"keep_kv": True}))
        queued = begin("kv-queued", 20)
        await commit
        later = begin("kv-later", 20)
        return [await asyncio.gather(*tasks) for tasks in (running, queued, later)]

    running, queued, later = with_client(engine_url, scenario)
    crossed = 0
    for prompt, generated in zip(prompts * 12, [*running, *queued, *later], strict=True):
        num_old = int((generated.versions < file.version).sum())
        if num_old in (0, len(generated.versions)):
            expected = token_logp(old if num_old else new, prompt, generated.token_ids)
        else:
            expected = logp_over_old_kv(old, new, prompt, generated.token_ids, num_old)
            alone = token_logp(new, prompt, generated.token_ids)
            crossed += np.abs(alone[num_old:] - expected[num_old:]).max() > 10 * TOLERANCE
        np.testing.assert_allclose(generated.logprobs, expected, atol=TOLERANCE)
    assert crossed >= 6
    assert all(set(generated.versions.tolist()) == {file.version} for generated in later)


def test_a_seeded_request_repeats_whatever_else_is_running(engine_url, published):
    prompt = contexts(1, 30, published[0].config.vocab_size, seed=2)[0]

    async def scenario(client):
        async def ask(name):
            return (await client.generate(GenerateRequest(name, prompt, 40, seed=99))).token_ids.tolist()

        alone = await ask("seed-alone")
        return alone, await asyncio.gather(*(ask(f"seed-{i}") for i in range(16)))

    alone, together = with_client(engine_url, scenario)
    assert all(tokens == alone for tokens in together)


def test_requests_of_older_leases_overtake_when_there_are_more_than_run_at_once(engine_url, published):
    prompt = contexts(1, 30, published[0].config.vocab_size, seed=4)[0]

    async def scenario(client):
        finished = []

        async def ask(number, order):
            await client.generate(GenerateRequest(f"order-{order}-{number}", prompt, 60, order=order))
            finished.append(order)

        young = [asyncio.create_task(ask(number, 9)) for number in range(392)]
        await are_running(client, 1)
        await asyncio.gather(*young, *(ask(number, 3) for number in range(8)))
        return finished

    finished = with_client(engine_url, scenario)
    assert finished.count(3) == 8
    # Behind all others they would end last; 64 run at once.
    assert 399 - finished[::-1].index(3) < 330


def test_the_kv_cache_of_a_tiny_model_takes_no_more_memory_than_its_requests_can_use(engine_url):
    from asyncrl.weights.vllm_executor import CACHED_CONTEXTS

    metrics = httpx.get(f"{engine_url}/metrics", headers=AUTHORIZED).text
    found = re.search(r'vllm:cache_config_info\{[^}]*block_size="(\d+)"[^}]*num_gpu_blocks="(\d+)"', metrics)
    block, blocks = int(found[1]), int(found[2])
    assert blocks == CACHED_CONTEXTS * ENGINE["max_num_seqs"] * -(-ENGINE["max_model_len"] // block)


def test_a_corrupted_weight_file_is_refused_and_the_weights_stay(engine_url, engine_weights, published):
    old, _, file, _ = published

    async def scenario(client):
        with pytest.raises(InputError, match="checksum"):
            await client.request("weights/prepare", {**file.to_json(), "checksum": "0" * 32})
        with pytest.raises(InputError, match="bytes, expected"):
            await client.request("weights/prepare", {**file.to_json(), "num_bytes": 1})
        with pytest.raises(InputError, match="cannot read"):
            await client.request("weights/prepare", {**file.to_json(), "path": str(engine_weights / "gone")})
        with pytest.raises(InputError, match="must lie below the folder of weights"):
            await client.request(
                "weights/prepare", {**file.to_json(), "path": f"{engine_weights}/../../etc/passwd"}
            )
        prompt = contexts(1, 20, old.config.vocab_size, seed=3)[0]
        return prompt, await client.generate(GenerateRequest("after-refusal", prompt, 10))

    prompt, generated = with_client(engine_url, scenario)
    np.testing.assert_allclose(
        generated.logprobs, token_logp(old, prompt, generated.token_ids), atol=TOLERANCE
    )


@pytest.mark.parametrize(
    ("method", "path", "worker_may"),
    [
        ("POST", "/resume", False),
        ("POST", "/sleep", False),
        ("POST", "/v1/load_lora_adapter", False),
        ("POST", "/update_weights", False),
        ("POST", "/wake_up", False),
        ("POST", "/collective_rpc", False),
        ("GET", "/server_info", False),
        ("GET", "/openapi.json", False),
        ("POST", "/asyncrl/v1/weights/prepare", False),
        ("POST", "/asyncrl/v1/weights/commit", False),
        ("GET", "/asyncrl/v1/state", True),
        ("GET", "/v1/models", True),
        ("GET", "/metrics", True),
    ],
)
def test_every_route_asks_for_a_token_and_only_the_trainers_loads_weights(
    engine_url, method, path, worker_may
):
    """vLLM's development routes too; `/collective_rpc` would run any method of its workers."""

    async def status(headers):
        kind = {"Content-Type": "application/msgpack"}
        body = b"\xc1" if method == "POST" else None
        async with (
            aiohttp.ClientSession(engine_url, headers=headers | kind) as http,
            http.request(method, path, data=body) as response,
        ):
            return response.status

    worker, trainer = (authorization(RUN.issue(role, "w").bearer("engine")) for role in ("worker", "trainer"))
    assert asyncio.run(status({})) == 401
    assert asyncio.run(status(authorization("guess"))) == 401
    assert asyncio.run(status(authorization(RUN.issue("worker", "w").bearer("env")))) == 401
    assert (asyncio.run(status(worker)) == 403) is not worker_may
    assert asyncio.run(status(trainer | {"Origin": "http://localhost"})) == 403
    assert asyncio.run(status(trainer | {"Host": "evil.example"})) == 403
    if method == "GET":
        nobodys = path in ("/server_info", "/openapi.json")
        assert (asyncio.run(status(trainer)) in (401, 403)) is nobodys


VLLMS_OWN = {
    "POST": (
        *(
            "collective_rpc",
            "pause",
            "resume",
            "update_weights",
            "start_weight_update",
            "finish_weight_update",
        ),
        *("init_weight_transfer_engine", "shutdown_weight_transfer_engine", "update_weight_version"),
        *(
            "abort_requests",
            "release_kv_cache_memory",
            "reset_mm_cache",
            "reset_encoder_cache",
            "start_profile",
        ),
        *(
            "stop_profile",
            "scale_elastic_ep",
            "weight_checker",
            "tokenize",
            "detokenize",
            "classify",
            "rerank",
        ),
        *(
            "invocations",
            "v1/load_lora_adapter",
            "v1/unload_lora_adapter",
            "inference/v1/generate",
            "v1/embeddings",
        ),
    ),
    "GET": (
        *(
            "server_info",
            "is_paused",
            "load",
            "weight_info",
            "get_world_size",
            "kv_event_sources",
            "openapi.json",
        ),
        *(
            "docs",
            "redoc",
            "version",
            "v1/anything",
            "v1/models/../../collective_rpc",
            "fault_tolerance/status",
        ),
    ),
}


def test_of_vllms_own_routes_those_that_are_not_named_answer_nobody(engine_url):
    """Some of them call any method of its workers; what another release of vLLM brings is closed, too."""

    async def statuses(headers):
        kind = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(engine_url, headers=headers | kind) as http:
            found = {}
            for method, paths in VLLMS_OWN.items():
                for path in paths:
                    url = yarl.URL(f"{engine_url}/{path}", encoded=True)
                    async with http.request(method, url, data=b"{}") as response:
                        found[path] = response.status
            return found

    for role in ("trainer", "worker", "engine"):
        token = RUN.issue(role, "w").bearer("engine") or RUN.issue(role, "w").bearer("buffer")
        assert set(asyncio.run(statuses(authorization(token))).values()) <= {401, 403}, role
    assert set(asyncio.run(statuses(authorization(TOKEN))).values()) == {403}, "the run's own token"


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa8requests\x91\x80", b"\x81\xa8requests\xa1x"]
)
def test_malformed_bodies_are_refused_and_the_engine_lives(engine_url, body):
    async def scenario():
        async with aiohttp.ClientSession(engine_url, headers=PACKED) as http:
            async with http.post("/asyncrl/v1/generate", data=body) as response:
                status = response.status
            async with http.get("/health") as response:
                return status, response.status

    assert asyncio.run(scenario()) == (400, 200)


def test_a_request_the_engine_cannot_serve_fails_alone(engine_url, published):
    vocab_size = published[0].config.vocab_size

    async def scenario(client):
        long, short = contexts(1, 300, vocab_size)[0], contexts(1, 10, vocab_size)[0]
        calls = [
            client.generate(GenerateRequest("long", long, 5)),
            client.generate(GenerateRequest("short", short, 5)),
            client.generate(GenerateRequest("negative", short, -1)),
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    too_long, fine, negative = with_client(engine_url, scenario)
    assert len(fine.token_ids) > 0
    assert isinstance(too_long, InputError)
    assert "length 300) is longer than the maximum model length of 256" in str(too_long)
    assert isinstance(negative, InputError)
    assert "max_tokens must be at least 1" in str(negative)


def test_a_request_without_an_answer_in_time_fails_and_frees_the_engine(engine_url, published):
    prompt = contexts(1, 20, published[0].config.vocab_size, seed=4)[0]

    async def scenario():
        hasty, patient = EngineClient(engine_url, timeout_s=0.05), EngineClient(engine_url)
        try:
            # Greedy, since a sampled end-of-sequence token may come in time.
            requests = [GenerateRequest(f"late-{i}", prompt, 200, temperature=0.0) for i in range(8)]
            late = await asyncio.gather(*(hasty.generate(r) for r in requests), return_exceptions=True)
            after = await patient.generate(GenerateRequest("after", prompt, 200, temperature=0.0))
            return late, hasty.in_flight, after
        finally:
            await hasty.close()
            await patient.close()

    late, in_flight, after = asyncio.run(scenario())
    assert {type(error) for error in late} == {InfrastructureError}
    assert "no answer to late-0 within 0.05 s" in str(late[0])
    assert in_flight == 0
    assert len(after.token_ids) == 200


def test_an_aborted_request_ends_before_its_limit(engine_url, published):
    prompt = contexts(1, 20, published[0].config.vocab_size, seed=5)[0]

    async def scenario(client):
        call = asyncio.ensure_future(
            client.generate(GenerateRequest("cut-short", prompt, 230, temperature=0.0))
        )
        await asyncio.sleep(0.1)
        await client.request("abort", {"ids": ["cut-short", "unknown"]})
        return (await asyncio.gather(call, return_exceptions=True))[0]

    outcome = with_client(engine_url, scenario)
    if isinstance(outcome, Exception):
        assert isinstance(outcome, InfrastructureError)
    else:
        assert len(outcome.token_ids) < 230
        assert len(outcome.token_ids) == len(outcome.logprobs)


def test_an_engine_that_is_not_there_is_an_infrastructure_failure_by_address():
    url = f"http://127.0.0.1:{free_port()}"

    async def scenario(client):
        request = GenerateRequest("x", np.arange(5, 9, dtype=np.int32), 4)
        return await asyncio.gather(client.generate(request), client.state(), return_exceptions=True)

    generated, state = with_client(url, scenario)
    assert isinstance(generated, InfrastructureError)
    assert url in str(generated) and "(3 attempts)" in str(generated)
    assert isinstance(state, InfrastructureError)
    assert url in str(state)


def test_a_missing_model_folder_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        serve_engine(EngineOptions(model=str(tmp_path / "missing")), RUN)


def test_a_port_is_kept_for_the_engine_until_it_listens_and_taken_by_nobody_else():
    with reserved_port(0) as port, socket.socket() as other, socket.socket() as engine:
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", port))
        engine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        engine.bind(("127.0.0.1", port))
        engine.listen()


def test_a_port_in_use_is_refused_by_number_with_exit_code_2(engine_url, tiny_model):
    port = engine_url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "asyncrl", "serve", "engine", "--model", tiny_model, "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr


def test_a_request_too_large_to_be_sent_fails_alone(engine_url):
    async def scenario(client):
        requests = [GenerateRequest(f"size-{i}", np.full(8, 7, np.int32), max_tokens=4) for i in range(3)]
        requests[1] = dataclasses.replace(requests[1], token_ids=np.zeros(17 * 2**20, np.int32))
        return await asyncio.gather(*(client.generate(r) for r in requests), return_exceptions=True)

    first, refused, last = with_client(engine_url, scenario)
    assert isinstance(refused, InputError)
    assert "must have at most" in str(refused)
    assert all(1 <= len(answer.token_ids) <= 4 for answer in (first, last))


def test_turns_that_are_given_up_are_aborted_at_the_engine_and_others_of_their_call_go_on(engine_url):
    """A cancelled episode and a turn beyond its time cost the engine nothing more."""

    async def generated(http):
        async with http.get(f"{engine_url}/metrics", headers=AUTHORIZED) as reply:
            lines = (await reply.text()).splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("vllm:generation_tokens_total")
        )

    async def scenario():
        # Many more than run at once, so that the engine is at them when they are given up.
        prompts = contexts(400, 20, 200)
        client, impatient = EngineClient(engine_url), EngineClient(engine_url, timeout_s=0.1)
        async with aiohttp.ClientSession() as http:
            try:
                before = await generated(http)
                kept = begin_all(client, prompts[:4], "kept", 200)
                given_up = begin_all(client, prompts, "given-up", 200)
                await are_running(client, 1)
                for turn in given_up:
                    turn.cancel()
                late = begin_all(impatient, prompts, "late", 200)
                failed = await asyncio.gather(*late, return_exceptions=True)
                answers = await asyncio.gather(*kept)
                async with asyncio.timeout(60):
                    while (await client.state())["running"]:
                        await asyncio.sleep(0.05)
                return failed, answers, await generated(http) - before
            finally:
                await client.close()
                await impatient.close()

    failed, answers, tokens = asyncio.run(scenario())
    reasons = [str(error) for error in failed if isinstance(error, InfrastructureError)]
    # Some may have sampled the end at once.
    assert len(reasons) > 300
    assert all(re.search(r"no answer to late-\d+ within 0\.1 s", reason) for reason in reasons)
    assert all(len(answer.token_ids) == 200 or answer.finish_reason == "stop" for answer in answers)
    # All 804 would be more than 100,000.
    assert sum(len(answer.token_ids) for answer in answers) < tokens < 60_000
