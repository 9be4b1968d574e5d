"""Engines that prefill for others, with real ones: what is sampled, across new weights, and where the prefill fails."""

import asyncio
import contextlib
import json
import shutil
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.generation import GenerateRequest, Prefilled
from asyncrl.services.engine import handover
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.handover import check_handover, handover_arguments, handover_variables
from asyncrl.services.engine.router import EngineRouter
from asyncrl.train.policy import load_policy
from asyncrl.weights.files import write_weights
from tests.credentials import RUN
from tests.engines import starting
from tests.waiting import START_S

RECIPE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}
SPLIT = {"max_model_len": 256, "max_num_seqs": 16, "count": 2, "prefill": 1, "prefill_from": 32}


def prompt(name, first, length=160, num_tokens=12, **given):
    tokens = np.array([(first + 7 * i) % 200 + 20 for i in range(length)], np.int32)
    return GenerateRequest(name, tokens, num_tokens, seed=first, **given)


def same(a, b):
    assert a.token_ids.tolist() == b.token_ids.tolist()
    assert a.logprobs == pytest.approx(b.logprobs, abs=2e-5)


@contextlib.contextmanager
def logs_of(folders):
    """Print what engines have logged where a test fails: why a prompt was computed again is told there alone."""
    try:
        yield
    except BaseException:
        for folder in folders:
            print(f"{folder.name}:\n{logged(folder)[-20_000:]}")
        raise


def logged(folder):
    return (folder / "logs" / "engine.log").read_text()


@pytest.mark.slow
def test_a_split_turn_is_sampled_as_a_whole_one_and_outlives_new_weights_and_the_engine_that_prefills(
    tiny_model, tmp_path
):
    folders = [tmp_path / "decode", tmp_path / "prefill"]
    weights = [folder / "weights" for folder in folders]
    for folder in weights:
        folder.mkdir(parents=True)
    # As on another machine.
    elsewhere = str(shutil.copytree(tiny_model, tmp_path / "model"))
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(starting(folder, model, where, prefill=folder is folders[1], engine=SPLIT))
            for folder, model, where in zip(folders, (tiny_model, elsewhere), weights, strict=True)
        ]
        for group, child in started:
            group.wait_ready(child, START_S)
        urls = [child.url for _, child in started]
        stack.enter_context(logs_of(folders))

        async def scenario():
            decode, prefill = (EngineClient(url, RUN.bearer("engine")) for url in urls)
            trainer = [EngineClient(url, RUN.bearer("engine")) for url in urls]
            router = EngineRouter([decode, prefill], 32)
            # On a busy machine a prompt may take longer to compute than a run would wait for it.
            router._prefill.late_s = START_S

            async def commit(client, where, policy):
                file = write_weights(where, 1, policy.model.named_parameters())
                for phase in ("weights/prepare", "weights/commit"):
                    await client.request(phase, file.to_json())

            async def ticket(one, first):
                return (await prefill.generate(prompt(one, first, num_tokens=1, prefill=True))).ticket

            async def both_known():
                """Probes have a deadline, which a busy machine may miss."""
                async with asyncio.timeout(START_S):
                    while True:
                        await router.probe()
                        known = {one["prefill"] for one in router.status() if one["health"] == "healthy"}
                        if known == {False, True}:
                            return

            async def shaken_hands():
                """Before its first pull an engine asks the other one who it is. vLLM waits 5 s for the answer; then the
                prompt is computed again, which a busy machine may cause and the engine that decodes says."""
                for first in range(80, 100):
                    came_of_it = (await router.generate(prompt(f"hands{first}", first))).prefills
                    said = logged(folders[0])
                    assert router.prefilled.again == said.count("failure: handshake_failed") + said.count(
                        "too late"
                    )
                    if came_of_it == (Prefilled.HANDED,):
                        return
                raise AssertionError(router.prefilled)

            async def in_time(name, starts, count):
                """Send `count` prompts at once; others where a ticket came too late, as on a busy machine, which the
                engine that decodes says. Return the number of the first one, the counts before, and the answers."""
                for first in starts:
                    before, late = replace(router.prefilled), logged(folders[0]).count("too late")
                    prompts = [prompt(f"{name}{n}", n) for n in range(first, first + count)]
                    answers = await asyncio.gather(*(router.generate(one) for one in prompts))
                    if logged(folders[0]).count("too late") == late:
                        break
                return first, before, answers

            try:
                await both_known()
                await shaken_hands()
                # Several at once, seeded: as the other engine samples them without a ticket.
                first, before, split = await in_time("s", range(100, 180, 4), 4)
                whole = await asyncio.gather(
                    *(prefill.generate(prompt(f"w{n}", first + n)) for n in range(4))
                )
                for a, b in zip(split, whole, strict=True):
                    same(a, b)
                    assert a.cached_tokens >= 159, router.prefilled
                    assert (a.prefills, b.prefills) == ((Prefilled.HANDED,), ())
                assert router.prefilled == replace(before, handed=before.handed + 4)
                assert router.prefilled.failed == 0
                # A short prompt, and a later turn of a conversation, stay where they are decoded.
                assert (await router.generate(prompt("short", 9, 24))).prefills == ()
                assert router.prefilled.handed == before.handed + 4

                good = await ticket("good", 20)
                bad = good[:-1] + bytes([good[-1] ^ 1])
                forged = await decode.generate(prompt("forged", 20, ticket=bad))
                assert forged.cached_tokens == 0
                same(forged, await prefill.generate(prompt("forged", 20)))

                # What the old weights computed is not read under new ones, though a ticket to it is there.
                policy = load_policy(tiny_model, "float32")
                with torch.no_grad():
                    for parameter in policy.model.parameters():
                        parameter.mul_(1.05)
                old = [await ticket(f"old{n}", 30 + n) for n in range(4)]
                racing = [
                    asyncio.ensure_future(decode.generate(prompt(f"r{n}", 30 + n, ticket=old[n])))
                    for n in range(3)
                ]
                await commit(trainer[0], weights[0], policy)
                late = await decode.generate(prompt("late", 33, ticket=old[3]))
                assert late.cached_tokens == 0
                assert set(late.versions) == {1}
                await commit(trainer[1], weights[1], policy)
                same(late, await prefill.generate(prompt("late2", 33)))
                for one in await asyncio.gather(*racing):
                    assert len(one.token_ids) == 12
                await both_known()
                first, _, (under_new,) = await in_time("new", range(180, 200), 1)
                assert under_new.cached_tokens >= 159
                assert set(under_new.versions) == {1}
                same(under_new, await prefill.generate(prompt("whole", first)))

                held = await ticket("held", 60)
                want = await prefill.generate(prompt("want", 60))
                for process in psutil.Process(started[1][1].popen.pid).children(recursive=True):
                    process.kill()
                same(await decode.generate(prompt("held2", 60, ticket=held)), want)
                handed = router.prefilled.handed
                after = await router.generate(prompt("after", 70))
                assert len(after.token_ids) == 12
                # The router may have noticed before, and then asks nobody.
                assert router.prefilled.handed == handed
                return await metrics(decode)
            finally:
                await router.close()
                for client in trainer:
                    await client.close()

        async def metrics(client):
            async with client._session().get(f"{client.url}/metrics") as reply:
                lines = (await reply.text()).splitlines()
            return {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("vllm:")}

        seen = asyncio.run(scenario())
    # Six prompts were fetched, and perhaps those during the swap.
    assert seen["vllm:external_prefix_cache_hits_total"] >= 6 * 159


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"engine": {"count": 1}}, "engine.prefill must be below engine.count=1"),
        ({"lora": {"rank": 8}}, "lora.rank must be 0"),
        ({"engine": {"keep_kv": True}, "train": {"schedule": "partial"}}, "engine.keep_kv must be false"),
        ({"engine": {"kv_offload_gib": 1}}, "engine.kv_offload_gib must be 0"),
        ({"engine": {"speculative": {"method": "ngram"}}}, "engine.speculative.method must be 'off'"),
        ({"placement": {"lent": 1}}, "placement.lent must be 0"),
        (
            {"placement": {"sleep": True}, "train": {"schedule": "synchronous"}},
            "placement.sleep must be false",
        ),
        ({"train": {"router_replay": True}}, "train.router_replay must be false"),
        ({"scale": {"engine": [1, 3]}}, "scale.engine must be left out"),
        ({"engine": {"extra_args": ["--kv-transfer-config", "{}"]}}, "engine.extra_args must be without"),
    ],
)
def test_what_cannot_stand_beside_engines_that_prefill_is_refused(other, message):
    given = {"engine": {"count": 2, "prefill": 1}}
    parse_config(RECIPE | given)
    merged = {key: given.get(key, {}) | other.get(key, {}) for key in given | other}
    with pytest.raises(ConfigError, match=message):
        parse_config(RECIPE | merged)


def test_a_missing_extra_is_named_before_anything_starts(monkeypatch):
    check_handover(0)
    monkeypatch.setattr(handover.importlib.util, "find_spec", lambda name: None)
    check_handover(0)
    with pytest.raises(
        ConfigError, match=r"engine.prefill: nixl is missing: pip install 'asyncrl\[nixl\]'.*got 2"
    ):
        check_handover(2)


def test_an_engine_of_either_side_is_told_its_connector_and_where_others_ask_for_it():
    assert handover_arguments("") == []
    assert handover_variables("", "127.0.0.1", 1) == {}
    for side, role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        flag, text = handover_arguments(side)
        assert flag == "--kv-transfer-config"
        assert (json.loads(text)["kv_role"], json.loads(text)["kv_load_failure_policy"]) == (
            role,
            "recompute",
        )
    near, far = handover_variables("prefill", "127.0.0.1", 9), handover_variables("prefill", "10.0.0.7", 9)
    assert (far["VLLM_NIXL_SIDE_CHANNEL_HOST"], far["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == ("10.0.0.7", "9")
    assert near["UCX_NET_DEVICES"] == "lo"
    assert "UCX_NET_DEVICES" not in far
