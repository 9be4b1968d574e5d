"""The process of a reward model over HTTP: what it answers, who may ask, and what a kill costs."""

import asyncio
import json
import os
import secrets
import signal
import sys
import urllib.error
import urllib.request

import pytest

from asyncrl.config import parse_config
from asyncrl.credentials import VARIABLE, Credentials, read_credentials
from asyncrl.errors import InputError, JudgeError
from asyncrl.extensions.judge.client import JudgeClient
from asyncrl.extensions.judge.judging import REWARD_MODEL, judging
from asyncrl.extensions.judge.questions import OVERALL, JudgeRequest
from asyncrl.extensions.judge.reward_model import read_reward_model
from asyncrl.extensions.judge.scoring_model import ScoringModel
from asyncrl.extensions.judge.service import conversations_of
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.process_start import start_process
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.types import Status, Task
from tests.app_thread import free_port
from tests.extensions.judge.reward_models import conversation, make
from tests.extensions.judge.test_learning import play_group
from tests.waiting import running, wait_for_url, wait_until

RUN: Credentials = read_credentials(secrets.token_hex(16), "test")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    several = ("right", "brief")
    made = tmp_path_factory.mktemp("reward-models")
    return {"one": make(made / "one", trained=True), "several": make(made / "several", labels=several)}


class Serving:
    """`asyncrl serve reward_model`, as a user or a launcher starts it."""

    def __init__(self, folder, ready, port=0):
        self.folder, self.ready, self.port = folder, ready, port or free_port()
        self.start()

    def start(self):
        self.ready.unlink(missing_ok=True)
        argv = [
            *(sys.executable, "-m", "asyncrl", "serve", "reward_model", "--model", str(self.folder)),
            *("--port", str(self.port), "--ready-file", str(self.ready)),
        ]
        token = RUN.issue(REWARD_MODEL).text
        self.process = start_process(argv, {**os.environ, VARIABLE: token}, output=sys.stderr.fileno())

    @property
    def url(self):
        return wait_for_url(self.ready, running(self.process))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture(scope="module")
def serving(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ready")
    made = {name: Serving(model, folder / f"{name}.json") for name, model in models.items()}
    yield made
    for one in made.values():
        one.kill()


def context(url, model, **judge):
    config = {"kind": "folder", "model": str(model), **judge}
    parsed = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, "judge": config})
    return WorkerContext(parsed, {REWARD_MODEL: url}, RUN.issue("worker", "w").bearer)


def request(answer):
    return JudgeRequest(Task("t", "e", 0), tuple(conversation(answer)), 0.0)


def ask(judge, *answers):
    async def scenario():
        try:
            return await asyncio.gather(
                *(judge.score(request(one)) for one in answers), return_exceptions=True
            )
        finally:
            await judge.close()

    return asyncio.run(scenario())


def test_scores_come_as_the_model_gives_them_and_what_was_cut_is_said(models, serving, caplog):
    answers = ["yes", "no", "maybe " * 200]
    found = ask(judging(context(serving["one"].url, models["one"])).judge, *answers)
    model = ScoringModel(read_reward_model("judge.model", str(models["one"])), "cpu")
    expected = [one.outputs[0] for one in model.score([conversation(answer) for answer in answers])]
    assert [one.numbers[OVERALL] for one in found] == pytest.approx(expected, abs=1e-5)
    assert [one.cut for one in found] == [False, False, True]
    assert "1 conversations so far were longer than the reward model reads" in caplog.text


def test_outputs_of_a_head_become_the_components_that_ask_for_them(models, serving, renderer):
    components = {"a": {"output": "brief", "weight": 2.0}, "b": {"output": "right", "weight": -1.0}}
    group = play_group(
        renderer, judging(context(serving["several"].url, models["several"], components=components))
    )
    for one in group.trajectories:
        found = one.components
        assert one.reward == pytest.approx(2.0 * found["judge_a"] - found["judge_b"])
        assert (one.status, found["judge_cut"]) == (Status.FINISHED, 0.0)
    assert len({one.components["judge_a"] for one in group.trajectories}) == 4


def call(url, token, body=b""):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/score", body, headers)
    try:
        with urllib.request.urlopen(asked) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_only_the_runs_workers_and_whoever_has_its_token_may_ask(serving):
    url, body = serving["one"].url, json.dumps({"items": []}).encode()
    assert call(url, RUN.issue("worker", "w").bearer(REWARD_MODEL), body) == (200, {"scores": [], "cut": []})
    assert call(url, RUN.run_token, body)[0] == 200
    assert [call(url, one, body)[0] for one in ("", "x", RUN.issue("trainer").bearer("buffer"))] == [401] * 3


@pytest.mark.parametrize(
    "body", [[], {}, {"items": {}}, {"items": [1]}, {"items": [{"messages": [{"role": 1}]}]}]
)
def test_another_body_is_refused(body):
    with pytest.raises(InputError, match="items"):
        conversations_of(body)


def test_a_killed_process_is_waited_for_and_no_score_is_lost_or_made_up(models, serving, tmp_path):
    one = Serving(models["one"], tmp_path / "ready.json")
    judge = judging(context(one.url, models["one"])).judge

    async def scenario():
        try:
            before = await judge.score(request("yes"))
            one.kill()
            asked = [asyncio.create_task(judge.score(request(word))) for word in ("no", "maybe", "a yes")]
            await asyncio.to_thread(wait_until, lambda: judge.endpoint.sent > 1)
            await asyncio.to_thread(one.start)
            return before, await asyncio.gather(*asked), await judge.score(request("yes"))
        finally:
            await judge.close()

    before, after, again = asyncio.run(scenario())
    one.kill()
    expected = ask(judging(context(serving["one"].url, models["one"])).judge, "no", "maybe", "a yes")
    assert [s.numbers for s in after] == [pytest.approx(s.numbers, abs=1e-5) for s in expected]
    assert again == before


def test_one_that_stays_away_fails_as_infrastructure_and_never_as_zero(models):
    config = JudgeConfig(kind="folder", model=str(models["one"]))
    (found,) = ask(JudgeClient(config, url=f"http://127.0.0.1:{free_port()}/v1/score"), "yes")
    assert isinstance(found, JudgeError)
    assert "ClientConnectorError" in str(found)
