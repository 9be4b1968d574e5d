"""One count of what a run's workers ask of its judge, in the ledger: exactly once, however processes start again."""

import asyncio
import json
from functools import partial

import pytest

from asyncrl.buffer.hooks.configured import hooks_of
from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.config import parse_config
from asyncrl.errors import InputError, JudgeError
from asyncrl.extensions.judge.budget import RunBudget
from asyncrl.extensions.judge.judging import judging
from asyncrl.extensions.judge.questions import OVERALL, JudgeRequest, Scores
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.extensions.judge.spending import Spending, report_spending
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.services.buffer.client import BufferClient
from asyncrl.types import Task
from tests.buffer.serving import ThreadService
from tests.credentials import RUN
from tests.extensions.judge.server import Endpoint, serving

A, B = "a" * 16, "b" * 16


def opened(path, **judge):
    hook = partial(Spending, judge=JudgeConfig(url="http://j", **judge))
    return Ledger(path, LedgerSettings(2, 1, 2), hooks=[hook])


def test_what_is_told_twice_counts_once_also_after_the_ledger_was_opened_again(tmp_path):
    for _ in range(3):
        book = opened(tmp_path / "ledger.sqlite", max_requests=4)
        assert [report_spending(book, A, n, 0) for n in (1, 2, 2)] == ["", "", ""]
        assert report_spending(book, B, 1, 0) == ""
        assert book.hook(Spending).spent() == (3, 0)
        book.close()


def test_processes_share_what_is_left_and_are_told_when_nothing_is(tmp_path):
    book = opened(tmp_path / "ledger.sqlite", max_requests=3)
    assert [report_spending(book, one, n, 0) for one, n in ((A, 1), (B, 1), (A, 2))] == ["", "", ""]
    assert "judge.max_requests=3 are spent" in report_spending(book, B, 2, 0)
    assert report_spending(book, A, 2, 0) == "", "what was allowed stays so"
    assert book.hook(Spending).stats() == {"judge_requests": 3, "judge_tokens": 0}


def test_tokens_count_though_none_is_left_and_more_are_allowed_by_a_later_launch(tmp_path):
    book = opened(tmp_path / "ledger.sqlite", max_total_tokens=100)
    assert [report_spending(book, A, 1, 0), report_spending(book, A, 2, 90)] == ["", ""]
    assert report_spending(book, A, 2, 130) == ""
    assert "judge.max_total_tokens=100 are spent" in report_spending(book, B, 1, 0)
    assert book.hook(Spending).spent() == (2, 130)
    book.close()
    book = opened(tmp_path / "ledger.sqlite", max_total_tokens=200)
    assert report_spending(book, B, 1, 0) == ""


def test_a_rollback_takes_back_no_request(tmp_path):
    book = opened(tmp_path / "ledger.sqlite", max_requests=9)
    report_spending(book, A, 5, 0)
    book.rollback_to(0)
    assert book.hook(Spending).spent() == (5, 0)


def test_a_run_has_the_count_where_its_judge_has_a_budget():
    def hooks(**judge):
        config = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "judge": {"url": "http://j", **judge}}
        return hooks_of(parse_config(config))

    assert (len(hooks()), len(hooks(max_requests=1)), len(hooks(max_total_tokens=1))) == (0, 1, 1)
    with pytest.raises(InputError, match="no judge with a budget"):
        report_spending(Ledger(":memory:", LedgerSettings(2, 1, 2)), A, 1, 0)


def usage(tokens):
    """Reply 5, with what that took; with None the server does not say."""

    def answer(body):
        reply = {"choices": [{"message": {"content": "5"}, "finish_reason": "stop"}]}
        return 200, json.dumps(reply | ({} if tokens is None else {"usage": {"total_tokens": tokens}}))

    return answer


def worker(url, name, buffer, **judge):
    """Return the judge of a worker of a run, and its connection to the buffer."""
    config = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "judge": {"url": url, **judge}}
    client = BufferClient(buffer, RUN.issue("worker", name).bearer("buffer"))
    return judging(WorkerContext(parse_config(config), tell=client.tell)).judge, client


def played(url, folder, most, names=("a", "b", "c"), **judge):
    """Have workers ask about so many conversations each, one after the other; return what they are told."""
    service = ThreadService(folder, [partial(Spending, judge=JudgeConfig(url=url, **judge))])

    async def scenario():
        found = []
        for name in names:
            one, client = worker(url, name, service.url, **judge)
            asked = [JudgeRequest(Task("t", "e", 0, data={"n": f"{name}{n}"}), (), 0.0) for n in range(most)]
            found += await asyncio.gather(*(one.score(request) for request in asked), return_exceptions=True)
            await one.close()
            await client.close()
        return found

    try:
        return asyncio.run(scenario()), service.ledger.hook(Spending).spent()
    finally:
        service.close()
        service.ledger.close()


def test_workers_send_what_the_run_may_and_no_more_also_after_its_buffer_was_started_again(tmp_path):
    endpoint = Endpoint(usage(10))
    with serving(endpoint) as url:
        first, spent = played(url, tmp_path, 2, max_requests=5)
        again, _ = played(url, tmp_path, 2, names=("d",), max_requests=5)
    assert [one for one in first if isinstance(one, Scores)] == [Scores({OVERALL: 0.5})] * 5
    assert (len(endpoint.bodies), spent) == (5, (5, 0))
    refused = [one for one in (*first, *again) if isinstance(one, JudgeError)]
    assert len(refused) == 3
    assert all("judge.max_requests=5 are spent" in str(one) for one in refused)


def test_a_budget_of_tokens_is_that_of_replies_and_a_server_that_does_not_say_is_refused(tmp_path):
    with serving(Endpoint(usage(60))) as url:
        found, spent = played(url, tmp_path, 1, max_total_tokens=100)
    assert spent == (2, 120)
    assert [type(one) for one in found] == [Scores, Scores, JudgeError]
    (tmp_path / "other").mkdir()
    with serving(Endpoint(usage(None))) as url:
        (error,), _ = played(url, tmp_path / "other", 1, names=("a",), max_total_tokens=100)
    assert "the server reports no usage.total_tokens" in str(error)


def test_an_answer_of_the_buffer_that_was_lost_counts_nothing_twice(tmp_path):
    book, lost = opened(tmp_path / "ledger.sqlite", max_requests=3), []

    async def tell(route, body):
        spent = report_spending(book, **body)
        if not lost:
            lost.append(body)
            raise InputError("the connection broke")
        return {"spent": spent}

    async def scenario():
        budget = RunBudget(tell)
        with pytest.raises(JudgeError, match="the connection broke"):
            await budget.spend()
        await budget.spend()
        await budget.spend()

    asyncio.run(scenario())
    assert book.hook(Spending).spent() == (2, 0)
