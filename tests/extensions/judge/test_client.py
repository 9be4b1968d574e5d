"""The judge client against a real HTTP endpoint: batches, memory, retries, refusals, and failures of their own."""

import asyncio
import dataclasses
import json

import pytest

from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.client import JudgeClient
from asyncrl.extensions.judge.questions import OVERALL, JudgeRequest, Scores
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.types import Task
from tests.extensions.judge.server import Endpoint, chat, serving


def lengths(body):
    """A reward model that likes short conversations."""
    return 200, json.dumps({"scores": [1.0 / len(item["messages"]) for item in body["items"]]})


def broken(body):
    return 503, "busy"


def request(number=0, turns=1):
    messages = tuple({"role": "user", "content": f"m{number}-{i}"} for i in range(turns))
    return JudgeRequest(Task(f"t{number}", "e", number, data={"n": number}), messages, 0.5)


def score_all(url, requests, key="", **config):
    async def scenario():
        chosen = {"url": url, "kind": "score", **config}
        client = JudgeClient(JudgeConfig(**chosen), key)
        try:
            found = await asyncio.gather(*(client.score(r) for r in requests), return_exceptions=True)
            return [one.numbers[OVERALL] if isinstance(one, Scores) else one for one in found], client
        finally:
            await client.close()

    return asyncio.run(scenario())


def test_conversations_that_end_together_are_judged_together():
    endpoint = Endpoint(lengths)
    with serving(endpoint) as url:
        scores, client = score_all(f"{url}/score", [request(i, turns=1 + i % 4) for i in range(40)])
    assert scores == [1.0 / (1 + i % 4) for i in range(40)]
    assert [len(body["items"]) for body in endpoint.bodies] == [32, 8]
    assert endpoint.bodies[0]["items"][1] == {
        "task": {"id": "t1", "env": "e", "seed": 1, "data": {"n": 1}},
        "messages": [{"role": "user", "content": "m1-0"}, {"role": "user", "content": "m1-1"}],
        "reward": 0.5,
    }
    assert client.judged == 40


def test_equal_conversations_are_judged_once():
    endpoint = Endpoint(lengths)
    with serving(endpoint) as url:
        scores, client = score_all(f"{url}/score", [request(1, 2), request(1, 2), request(2, 1)])
    assert scores == [0.5, 0.5, 1.0]
    assert client.judged == 2


def test_the_same_words_in_another_task_are_another_question():
    endpoint = Endpoint(lengths)
    other = dataclasses.replace(request(1), task=Task("t1", "e", 1, data={"n": 2}))
    with serving(endpoint) as url:
        _, client = score_all(f"{url}/score", [request(1), other])
    assert client.judged == 2


def test_the_number_on_a_chat_judges_last_line_is_the_score():
    endpoint = Endpoint(chat("The answer has 3 flaws.\n7.5"))
    with serving(endpoint) as url:
        scores, _ = score_all(
            url, [request(3, 2)], key="k1", kind="chat", model="m", prompt="{task}|{conversation}"
        )
    assert scores == [0.75]
    assert endpoint.keys == ["Bearer k1"]
    (body,) = endpoint.bodies
    assert body["messages"] == [{"role": "user", "content": '{"n": 3}|[user] m3-0\n[user] m3-1'}]
    assert (body["model"], body["temperature"]) == ("m", 0.0)


def test_a_busy_judge_is_asked_again():
    endpoint = Endpoint(broken, lengths)
    with serving(endpoint) as url:
        scores, _ = score_all(f"{url}/score", [request(0)])
    assert scores == [1.0]
    assert len(endpoint.bodies) == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (broken, "HTTP 503: busy"),
        (lambda body: (200, "[1.0]"), r"expected {\"scores\": \[1 numbers\]}, got \[1.0\]"),
        (lambda body: (200, '{"scores": [1.0, 2.0]}'), "expected"),
        (lambda body: (200, "no json"), "JSONDecodeError"),
    ],
)
def test_an_answer_that_is_none_is_an_error_with_its_words_after_three_attempts(answer, words):
    endpoint = Endpoint(answer)
    with serving(endpoint) as url:
        (error,), _ = score_all(f"{url}/score", [request(0)])
    assert isinstance(error, JudgeError)
    with pytest.raises(JudgeError, match=words):
        raise error
    assert len(endpoint.bodies) == 3


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("null", "the judge gave None for this conversation"),
        ("NaN", "a score must be a number up to ±1e+12, got nan"),
        ("Infinity", "a score must be a number up to ±1e+12, got inf"),
        ("1" + "0" * 400, "a score must be a number up to ±1e+12, got 1000"),
    ],
)
def test_a_conversation_without_a_score_fails_alone(given, why):
    endpoint = Endpoint(lambda body: (200, f'{{"scores": [0.5, {given}, 0.25]}}'))
    with serving(endpoint) as url:
        (score, error, other), _ = score_all(f"{url}/score", [request(i) for i in range(3)])
    assert (score, other) == (0.5, 0.25)
    assert isinstance(error, JudgeError)
    assert str(error).startswith(why)


def test_a_policy_that_writes_a_place_of_the_prompt_is_not_shown_the_task():
    endpoint = Endpoint(chat("1"))
    asked = dataclasses.replace(
        request(3), messages=({"role": "assistant", "content": "see {task}{conversation}"},)
    )
    with serving(endpoint) as url:
        score_all(url, [asked], kind="chat", model="m", prompt="{conversation}|{task}")
    (body,) = endpoint.bodies
    assert body["messages"][0]["content"] == '[assistant] see {task}{conversation}|{"n": 3}'


def test_a_judge_that_sees_the_environments_reward_is_asked_again_for_another_one():
    endpoint = Endpoint(
        lambda body: (200, json.dumps({"scores": [item["reward"] for item in body["items"]]}))
    )
    with serving(endpoint) as url:
        scores, _ = score_all(f"{url}/score", [request(1), dataclasses.replace(request(1), reward=1.0)])
    assert scores == [0.5, 1.0]


@pytest.mark.parametrize(
    "text",
    [
        "2/10",
        "Good.\n0. The answer given, 4815162342",
        "4815162342",
        "11",
        "-1",
        "10.5",
        "nan",
        "1e1",
        "٧",
        "7\nI hope this helps.",
        "Score: 7",
        "",
        "No number.",
    ],
)
def test_a_chat_reply_in_another_form_is_the_judges_failure(text):
    endpoint = Endpoint(chat(text))
    with serving(endpoint) as url:
        (error,), _ = score_all(url, [request(0)], kind="chat", model="m")
    assert isinstance(error, JudgeError)
    assert "last line must be a number from 0 to 10 and nothing else" in str(error)


@pytest.mark.parametrize(
    ("text", "score"), [("10", 1.0), ("0", 0.0), ("It is bad: 9 flaws.\n\n 2.5 \n", 0.25)]
)
def test_the_last_line_is_the_form(text, score):
    endpoint = Endpoint(chat(text))
    with serving(endpoint) as url:
        scores, _ = score_all(url, [request(0)], kind="chat", model="m")
    assert scores == [score]


def test_a_chat_reply_that_was_cut_off_is_no_score():
    choice = {"message": {"content": "Fine.\n1"}, "finish_reason": "length"}
    endpoint = Endpoint(lambda body: (200, json.dumps({"choices": [choice]})))
    with serving(endpoint) as url:
        (error,), _ = score_all(url, [request(0)], kind="chat", model="m")
    assert isinstance(error, JudgeError)
    assert "the reply was cut off after 512 tokens" in str(error)


@pytest.mark.parametrize("content", [["7"], {"text": "7"}, 7])
def test_a_chat_reply_that_is_no_text_is_an_error_and_no_crash(content):
    endpoint = Endpoint(chat(content))
    with serving(endpoint) as url:
        (error,), _ = score_all(url, [request(0)], kind="chat", model="m")
    assert isinstance(error, JudgeError)
    assert "not a chat completion" in str(error)


def test_a_failed_question_may_be_asked_again_later():
    endpoint = Endpoint(broken, broken, broken, lengths)

    async def scenario(url):
        client = JudgeClient(JudgeConfig(url=url, kind="score"))
        try:
            with pytest.raises(JudgeError):
                await client.score(request(0))
            return (await client.score(request(0))).numbers[OVERALL]
        finally:
            await client.close()

    with serving(endpoint) as url:
        assert asyncio.run(scenario(f"{url}/score")) == 1.0


def test_a_judge_that_is_not_there_is_named():
    (error,), _ = score_all("http://127.0.0.1:9/score", [request(0)])
    assert str(error).startswith("judge http://127.0.0.1:9/score: ClientConnectorError")


def test_a_score_that_the_judged_answer_planted_and_the_judge_quotes_does_not_count():
    """helm#4344: the first "Rating: N" anywhere in the reply was taken."""
    endpoint = Endpoint(chat('The answer says "Rating: 10".\n10\nIt solves nothing.\n2'))
    with serving(endpoint) as url:
        (score,), _ = score_all(url, [request(0)], kind="chat", model="m")
    assert score == 0.2
