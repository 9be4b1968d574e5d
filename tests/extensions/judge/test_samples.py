"""Components, several replies, what is remembered, what may be spent: the client against a real HTTP endpoint."""

import asyncio
import json
import logging

import pytest

from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.client import JudgeClient
from asyncrl.extensions.judge.endpoint import chat_url
from asyncrl.extensions.judge.questions import OVERALL, JudgeRequest, Scores
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.types import Task
from tests.extensions.judge.server import Endpoint, chat, serving

COMPONENTS = {"right": {"rubric": "Is it right?"}, "brief": {"rubric": "Is it short?", "scale": [1, 5]}}


def request(text="4", data=None):
    messages = ({"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": text})
    return JudgeRequest(Task("t", "e", 0, data=data or {}), messages, 0.0, {1: 0})


def judged(url, *requests, again=(), **given):
    """Return the scores of requests asked at once, then of those asked `again`, and the client."""

    async def scenario():
        client = JudgeClient(JudgeConfig(url=url, **given))
        try:
            found = await asyncio.gather(*(client.score(one) for one in requests), return_exceptions=True)
            found += [await client.score(one) for one in again]
            return found, client
        finally:
            await client.close()

    return asyncio.run(scenario())


def replies(*texts):
    """Reply with each text in turn."""
    return Endpoint(*(chat(text) for text in texts))


def refused(body):
    return 400, "too long for the model"


def test_all_components_come_from_one_request():
    endpoint = replies("It is.\nright: 10\nbrief: 2")
    with serving(endpoint) as url:
        found, _ = judged(url, request(), components=COMPONENTS)
    assert found == [Scores({"right": 1.0, "brief": 0.25})]
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize(("vote", "right"), [("mean", 0.5), ("median", 0.4), ("majority", 0.4)])
def test_several_replies_are_asked_for_and_voted_on(vote, right):
    endpoint = replies(*(f"right: {n}\nbrief: 1" for n in (4, 4, 9, 3)), "right: 5\nbrief: 1")
    with serving(endpoint) as url:
        found, client = judged(url, request(), components=COMPONENTS, samples=5, vote=vote)
    assert found[0].numbers["right"] == pytest.approx(right)
    assert len(endpoint.bodies) == 5
    assert {body["temperature"] for body in endpoint.bodies} == {1.0}
    assert client.judged == 1


def test_replies_that_do_not_count_are_left_out_of_the_vote_and_told(caplog):
    """The first of three replies has a number; the others have none in any of their attempts."""
    with serving(replies("8", "no")) as url, caplog.at_level(logging.WARNING, "asyncrl.judge"):
        found, client = judged(url, request(), samples=3)
    assert found == [Scores({OVERALL: 0.8})]
    assert client.samples_failed == 2
    assert "2 replies did not count" in caplog.text
    assert "the reply's last line must be a number" in caplog.text


def test_a_question_to_which_no_reply_counts_is_the_judges_failure():
    with serving(replies("no idea")) as url:
        ((error,), client) = judged(url, request(), samples=2)
    assert isinstance(error, JudgeError)
    assert str(error).startswith("none of 2 replies counts; the first: judge ")
    assert client.samples_failed == 0


def test_what_reads_the_same_has_the_same_scores_and_costs_nothing():
    endpoint = Endpoint(lambda body: chat(str(len(endpoint.bodies)))(body))
    with serving(endpoint) as url:
        found, client = judged(
            url, request(), request(data={"seen": "by nobody"}), again=[request()], prompt="{conversation}"
        )
    assert found == [Scores({OVERALL: 0.1})] * 3
    assert (client.judged, client.endpoint.sent) == (1, 1)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("asyncrl.extensions.judge.client.REMEMBERED", 2)
    endpoint = replies("5")
    with serving(endpoint) as url:
        _, client = judged(url, *(request(str(n)) for n in range(4)), again=[request("3"), request("0")])
    assert len(client._known) == 2
    assert client.judged == 5, "the newest was still known, the oldest was not"


def test_a_judge_whose_requests_are_spent_fails_and_says_so(caplog):
    endpoint = replies("5")
    with serving(endpoint) as url, caplog.at_level(logging.ERROR, "asyncrl.judge"):
        found, client = judged(url, *(request(str(n)) for n in range(5)), max_requests=3)
    assert [one for one in found if isinstance(one, Scores)] == [Scores({OVERALL: 0.5})] * 3
    errors = [one for one in found if isinstance(one, JudgeError)]
    assert len(errors) == 2
    assert "judge.max_requests=3 are spent" in str(errors[0])
    assert len(endpoint.bodies) == client.endpoint.sent == 3
    assert caplog.text.count("judge.max_requests=3 are spent") == 1


def test_attempts_count_as_requests_that_are_spent():
    with serving(replies("no number")) as url:
        ((error,), client) = judged(url, request(), max_requests=2)
    assert "judge.max_requests=2 are spent" in str(error)
    assert client.endpoint.sent == 2


def test_a_refusal_is_told_with_the_servers_words():
    endpoint = Endpoint(refused)
    with serving(endpoint) as url:
        ((error,), _) = judged(url, request())
    assert "HTTP 400: too long for the model (3 attempts)" in str(error)
    assert len(endpoint.bodies) == 3


@pytest.mark.parametrize(
    ("given", "route"),
    [
        ("http://j:8000", "http://j:8000/v1/chat/completions"),
        ("http://j:8000/", "http://j:8000/v1/chat/completions"),
        ("http://j:8000/v1", "http://j:8000/v1/chat/completions"),
        ("http://j/proxy/v1/", "http://j/proxy/v1/chat/completions"),
        ("https://j/openai/chat/completions", "https://j/openai/chat/completions"),
    ],
)
def test_an_address_may_end_with_the_version_or_the_route(given, route):
    assert chat_url(given) == route


def test_an_address_with_its_version_is_asked():
    with serving(replies("5")) as url:
        found, _ = judged(f"{url}/v1", request())
    assert found == [Scores({OVERALL: 0.5})]


def test_answers_of_a_policy_do_not_break_a_request():
    """Half a surrogate pair, zeros and marks of templates arrive as text that any server can read."""
    endpoint = replies("5")
    with serving(endpoint) as url:
        found, _ = judged(url, request("\ud800\x00<|im_end|>"))
    assert found == [Scores({OVERALL: 0.5})]
    assert "<U+D800><U+0000>< |im_end|>" in json.dumps(endpoint.bodies[0])
