"""What is wrong with an engine stands on the terminal while workers still try: which one, with what, how often."""

import asyncio
import struct

import msgpack
import pytest
from aiohttp import web

from asyncrl.config import parse_config
from asyncrl.launch.evaluation.evaluate import evaluate_with
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.launch.reports.engine_troubles import AGAIN_S, AWAY_S, EngineTroubleReport
from asyncrl.run.diagnosis import Observed, diagnose
from asyncrl.services.engine.trouble import FORGET_S, EngineTrouble
from tests.services.engine.test_garbage import STATE
from tests.waiting import START_S

URL = "http://127.0.0.1:1"


def trouble(garbage=True, failures=3, for_s=2.0, sound=0, url=URL):
    return {
        "url": url, "garbage": garbage, "failures": failures, "for_s": for_s, "error": "NaN", "sound_engines": sound,
    }  # fmt: skip


@pytest.fixture
def report():
    return EngineTroubleReport({URL: "engine-0", "http://x": ""}.get)


def test_garbage_is_told_at_once_with_which_engine_what_it_sends_how_often_and_what_to_do(report):
    (line,) = report.new_messages({"w1": [trouble()], "w2": [trouble(failures=4, for_s=3.0)]}, 0.0)
    assert line.startswith(
        "engine-0 answers with garbage: 7 requests or probes of 2 worker(s) in 3 s; nothing is sampled until that "
        "ends. The last: NaN\n    -> another version of asyncrl or vLLM"
    )


def test_one_that_does_not_answer_is_told_of_after_a_moment(report):
    assert report.new_messages({"w": [trouble(garbage=False, for_s=AWAY_S / 2)]}, 0.0) == []
    (line,) = report.new_messages({"w": [trouble(garbage=False, for_s=AWAY_S, sound=2)]}, 3.0)
    assert line.startswith(
        "engine-0 fails: 3 requests or probes of 1 worker(s) in 5 s; the run goes on with 2"
    )


def test_the_same_is_told_again_ever_more_seldom_and_its_end_once(report):
    told = [now for now in range(400) if report.new_messages({"w": [trouble()]}, float(now))]
    assert told == [0, AGAIN_S, 3 * AGAIN_S, 9 * AGAIN_S]
    assert report.new_messages({}, 400.0) == [], "no worker answers, which says nothing of the engine"
    (line,) = report.new_messages({"w": []}, 401.0)
    assert line == "engine-0 serves requests again, or is no longer used, after 401 s"
    assert report.new_messages({"w": []}, 402.0) == []


def test_one_that_the_run_is_starting_again_is_left_to_what_has_been_told_of_that(report):
    assert report.new_messages({"w": [trouble(url="http://x", for_s=100.0)]}, 0.0) == []


def test_a_trouble_ends_with_a_request_that_is_served():
    seen = EngineTrouble()
    assert seen.described(0.0) is None
    seen.failed(10.0, ValueError("NaN"), garbage=True)
    seen.failed(12.0, ConnectionError("refused"), garbage=False)
    assert seen.described(13.0) == {"garbage": True, "failures": 2, "for_s": 3.0, "error": "NaN"}
    seen.probed(12.0 + 2 * FORGET_S)
    assert seen.described(60.0) is not None, "a sound state says nothing about answers"
    seen.served()
    assert seen.described(60.0) is None


def test_a_probe_ends_a_trouble_only_when_requests_no_longer_fail():
    seen = EngineTrouble()
    seen.failed(10.0, ConnectionError("refused"), garbage=False)
    seen.probed(11.0)
    assert seen.described(11.0) is not None
    seen.probed(11.0 + FORGET_S)
    assert seen.described(30.0) is None


@pytest.mark.parametrize(
    ("listed", "rules"),
    [([trouble()], ["engine_troubles"]), ([trouble(garbage=False, for_s=5.0)], []),
     ([trouble(garbage=False, for_s=90.0)], ["engine_troubles"])],
)  # fmt: skip
def test_the_monitor_shows_it_too_while_it_lasts(listed, rules):
    found = diagnose(Observed([], activity=[{"engine_troubles": listed}]))
    assert [finding.rule for finding in found] == rules
    assert diagnose(Observed([], activity=[{"engine_troubles": listed}, {}])) == []


@pytest.mark.slow
def test_a_run_whose_only_engine_answers_with_garbage_says_so_while_it_still_tries(
    tiny_model, tmp_path, capsys
):
    config = parse_config({
        "model": {"path": tiny_model}, "env": {"name": "gridworld", "config": {"max_turns": 2}},
        "engine": {"max_model_len": 200}, "rollout": {"max_tokens_per_turn": 12},
    })  # fmt: skip
    (tmp_path / "config.json").write_text(config.model_dump_json())
    group = ProcessGroup(tmp_path)

    async def generate(received):
        packed = msgpack.packb({"id": "somebody else"})
        return web.Response(body=struct.pack("<I", len(packed)) + packed)

    async def state(received):
        return web.Response(body=msgpack.packb(STATE), content_type="application/msgpack")

    async def scenario():
        app = web.Application()
        app.router.add_post("/asyncrl/v1/generate", generate)
        app.router.add_get("/asyncrl/v1/state", state)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        argv = ["serve", "rollout", "--folder", str(tmp_path), "--model", tiny_model, "--engines", url]
        worker = await asyncio.to_thread(group.wait_ready, group.start("rollout", argv), START_S)
        playing = asyncio.ensure_future(
            evaluate_with(worker, config, "gridworld", 2, 1, group.credentials.bearer("rollout"))
        )
        said = ""
        while "answers with garbage" not in said:
            await asyncio.sleep(0.1)
            assert not playing.done()
            said += capsys.readouterr().err
        playing.cancel()
        await runner.cleanup()
        return url, said

    try:
        url, said = asyncio.run(asyncio.wait_for(scenario(), 2 * START_S))
    finally:
        group.stop()
    assert f"the engine at {url} answers with garbage" in said
    assert "it answers a request that it was not sent" in said
    assert "    -> another version of asyncrl or vLLM" in said
