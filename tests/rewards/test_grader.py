"""The process that compares expressions: what hangs or kills it costs nobody else, and never becomes a 0 unseen."""

import asyncio
import signal

import pytest

from asyncrl.rewards.answers.grader import GRADERS, Graders
from asyncrl.rewards.protocol import NotJudged

HANGING = (r"9^{9^{9^{9}}}", r"\binom{10^9}{10^8}", r"\int_0^\infty e^{-x^{x^x}} dx", r"(10^{9})!")


@pytest.mark.slow
@pytest.mark.parametrize("answer", HANGING)
def test_an_answer_that_leaves_the_computation_to_the_grader_is_wrong(answer):
    assert GRADERS.equal("42", answer) is False


@pytest.mark.slow
def test_honest_answers_are_judged_beside_hanging_ones():
    async def whole():
        hanging = [asyncio.create_task(GRADERS.judge("42", HANGING[n % 4])) for n in range(12)]
        await asyncio.sleep(0)
        honest = await asyncio.gather(*(GRADERS.judge(r"\sqrt{2}", r"\frac{2}{\sqrt{2}}") for _ in range(20)))
        return honest, await asyncio.gather(*hanging)

    honest, hung = asyncio.run(whole())
    assert honest == [True] * 20
    assert hung == [False] * 12


def test_deeply_nested_answers_are_compared_as_text():
    nested = "(" * 300 + "1" + ")" * 300
    assert GRADERS.equal("42", nested) is False
    assert GRADERS.equal(nested, nested) is True


def test_a_grader_that_dies_judges_nothing_and_the_next_one_does():
    graders = Graders()
    assert graders.equal("x+1", "1+x") is True
    assert graders._process is not None
    graders._process.kill()
    graders._process.wait()
    assert graders.equal("x+1", "1+x") is True
    graders.close()


def test_a_grader_that_is_suspended_for_good_is_ended_and_what_it_was_asked_is_not_judged(monkeypatch):
    monkeypatch.setattr("asyncrl.rewards.answers.grader.WATCH_S", 0.1)
    graders = Graders()
    assert graders.equal("x+1", "1+x") is True
    assert graders._process is not None
    graders._process.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as short:
        short.setattr("asyncrl.rewards.answers.grader.SILENT_S", 1.0)
        with pytest.raises(NotJudged, match="ended before its verdict: not judged"):
            graders.equal("x+2", "2+x")
    assert graders.equal("x+2", "2+x") is True, "the next one starts another"
    graders.close()


def test_a_verdict_that_was_cut_is_not_judged(monkeypatch):
    monkeypatch.setattr("asyncrl.rewards.answers.grader.MAIN", _cutting())
    graders = Graders()
    with pytest.raises(NotJudged, match="was cut off by its limits: not judged"):
        graders.equal("x+1", "1+x")
    assert graders.equal("42", r"2^{2^{2}}") is False, "an answer that is a computation is wrong instead"
    assert graders.equal("42", "42") is True, "what needs no grader is judged"
    graders.close()


def test_a_grader_that_does_not_start_judges_nothing(monkeypatch):
    monkeypatch.setattr("asyncrl.rewards.answers.grader.MAIN", "/nowhere.py")
    with pytest.raises(NotJudged, match="the math grader did not start"):
        Graders().equal("x+1", "1+x")


def _cutting():
    """A grader whose every comparison runs into its limits."""
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(
            "import sys, json\nprint('ready', flush=True)\nfor line in sys.stdin:\n"
            "    print(json.dumps({'id': json.loads(line)['id'], 'verdict': 'cut'}), flush=True)\n"
        )
    return file.name
