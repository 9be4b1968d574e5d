"""The process that compares expressions: what hangs or kills it costs nobody else, and never becomes a 0 unseen."""

import asyncio
import concurrent.futures
import signal
from pathlib import Path

import pytest

from asyncrl.extensions.answer_rewards import grader_main
from asyncrl.extensions.answer_rewards.grader import GRADERS, Graders
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
    monkeypatch.setattr("asyncrl.extensions.answer_rewards.grader.WATCH_S", 0.1)
    graders = Graders()
    assert graders.equal("x+1", "1+x") is True
    assert graders._process is not None
    graders._process.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as short:
        short.setattr("asyncrl.extensions.answer_rewards.grader.SILENT_S", 1.0)
        with pytest.raises(NotJudged, match="ended before its verdict: not judged"):
            graders.equal("x+2", "2+x")
    assert graders.equal("x+2", "2+x") is True, "the next one starts another"
    graders.close()


def test_a_verdict_that_was_cut_is_not_judged(monkeypatch, tmp_path):
    monkeypatch.setattr("asyncrl.extensions.answer_rewards.grader.MAIN", _cutting(tmp_path))
    graders = Graders()
    with pytest.raises(NotJudged, match="was cut off by its limits: not judged"):
        graders.equal("x+1", "1+x")
    assert graders.equal("42", r"2^{2^{2}}") is False, "an answer that is a computation is wrong instead"
    assert graders.equal("42", "42") is True, "what needs no grader is judged"
    graders.close()


LONG = (
    r"(x+1)^{999}(x+2)^{999}",
    "+".join(rf"\sin({k}x)" for k in range(1, 40)),
    "".join(rf"\frac{{x+{k}}}{{x-{k}}}" for k in range(1, 14)),
    "+".join(f"a_{{{k}}}b_{{{k}}}" for k in range(60)),
    r"\sin(\cos(\tan(\sin(\cos(\tan(\sin(\cos(x))))))))",
    "x^{99}+x^{98}+x^{97}<3",
)
"""Answers that nobody can simplify, solve or even read within the limits of one comparison."""


@pytest.mark.slow
@pytest.mark.parametrize("gold", ["x+1", "x<3", "y=2x+3"])
def test_an_answer_is_no_way_to_an_episode_that_is_not_judged(gold):
    async def judged(answer):
        try:
            return await GRADERS.judge(gold, answer)
        except NotJudged as error:
            # That of the machine, where it gives a comparison next to none.
            return "got no CPU time" not in str(error)

    async def whole():
        return await asyncio.gather(*(judged(answer) for answer in LONG))

    assert asyncio.run(whole()) == [False] * len(LONG)


def test_what_ends_a_comparison_says_whose_doing_it_was():
    killed, limit = signal.SIGKILL, signal.SIGPROF
    assert grader_main._verdict(b"GACtrue", 0, 0.1, False) == "true"
    assert grader_main._verdict(b"GA", limit, 3.0, False) == "own", "the answer alone took all of it"
    assert grader_main._verdict(b"G", limit, 3.0, False) == "cut", "so did the gold"
    assert grader_main._verdict(b"GAC", limit, 3.0, False) == "cut", "and the two together"
    assert grader_main._verdict(b"GA", 0, 0.1, False) == "own", "out of memory, before its time was over"
    assert grader_main._verdict(b"GA", killed, 1.0, True) == "own", "its time was over, and much was spent"
    assert grader_main._verdict(b"GA", killed, 0.1, True) == "late", "the machine gave it none"
    assert grader_main._verdict(b"GA", killed, 0.1, False) == "killed", "the machine has no memory"


def test_a_comparison_that_the_machine_kills_is_not_judged():
    graders = Graders()
    assert graders.equal("x+1", "1+x") is True
    graders._submit = lambda ask, op="": _done("killed")
    with pytest.raises(NotJudged, match="was killed by somebody else: not judged"):
        graders.equal("x+1", "1+x")
    graders._submit = lambda ask, op="": _done("own")
    assert graders.equal("x+1", "1+x") is False
    graders.close()


def _done(verdict):
    future = concurrent.futures.Future()
    future.set_result(verdict)
    return future


SAME = [
    (r"\sin^2(x)", r"1-\cos^2(x)"),
    (r"\frac{x^2-1}{x-1}", "x+1"),
    ("(x+1)^3", "x^3+3x^2+3x+1"),
    (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}"),
    ("10^{-30}x", "x 10^{-30}"),
    ("y=2x+3", "4x-2y+6=0"),
    (r"\log(x)+1", r"1+\log(x)"),
    ("x<3", "3>x"),
]
OTHER = [
    (r"\sqrt{x^2}", "x"),
    ("x+1", "x+1.0001"),
    ("y=2x+3", "y=2x+3.001"),
    ("10^{-30}x", "2x 10^{-30}"),
    ("x<3", r"x \le 3"),
    ("x<3", "x<4"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_what_is_equal_everywhere_has_the_same_values_at_points(gold, answer):
    assert GRADERS.equal(gold, answer) is True


@pytest.mark.parametrize(("gold", "answer"), OTHER)
def test_what_differs_is_told_apart_with_points_and_without(gold, answer):
    assert GRADERS.equal(gold, answer) is False


def test_a_grader_that_does_not_start_judges_nothing(monkeypatch):
    monkeypatch.setattr("asyncrl.extensions.answer_rewards.grader.MAIN", "/nowhere.py")
    with pytest.raises(NotJudged, match="the math grader did not start"):
        Graders().equal("x+1", "1+x")


def _cutting(folder: Path) -> str:
    """A grader whose every comparison runs into its limits."""
    file = folder / "cutting.py"
    file.write_text(
        "import sys, json\nprint('ready', flush=True)\nfor line in sys.stdin:\n"
        "    print(json.dumps({'id': json.loads(line)['id'], 'verdict': 'cut'}), flush=True)\n"
    )
    return str(file)
