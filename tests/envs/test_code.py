"""Code: programs in any language, judged by output; what the program never sees; what the model is told."""

import asyncio
import random
import shutil

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.envs.code.env import Code
from asyncrl.envs.code.grading import extract, judge, same
from asyncrl.envs.code.problems import LEVELS, make
from asyncrl.envs.code.programs import idioms, render, run
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.sandbox import languages
from asyncrl.sandbox.bubblewrap import BubblewrapSandbox
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.types import Task

HERE = __name__
TESTS = (("2 3\n", "5\n"), ("10 -4\n", "6\n"))
SUM = "print(sum(map(int, input().split())))"


class Recording(BubblewrapSandbox):
    """Keeps everything that enters the sandbox."""

    name = f"{HERE}:Recording"
    entered: bytes = b""

    async def write(self, path, data):
        Recording.entered += data
        await super().write(path, data)

    async def exec(self, argv=None, *, code=None, stdin=b"", **options):
        Recording.entered += repr(argv).encode() + repr(code).encode() + stdin
        return await super().exec(argv, code=code, stdin=stdin, **options)


def make_env(seed=0, **config):
    return Code(Task("t", "code", seed), **config)


def in_loop(coroutine):
    async def whole():
        try:
            return await coroutine
        finally:
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def play(env, *programs):
    async def whole():
        return [await env.step(p if isinstance(p, Action) else Action(p)) for p in programs]

    return in_loop(whole())


def judged(program, language="python", backend="auto", tests=TESTS, time_limit_s=10.0):
    return in_loop(judge(program, tests, language, backend, time_limit_s))


@pytest.mark.parametrize("language", list(idioms()))
def test_every_reference_program_prints_the_same_in_every_language(language):
    profile = languages.get(language)
    tool = (profile.compile or profile.run)[0]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    # One program that does everything, then one problem of each level.
    everything = (
        "a = read()\nb = read()\ns = 0\nwhile a > 0 and (b >= 1 or s <= 3):\n"
        " s = s + (a % 10 if a % 2 == 0 else b // 2) * (a - 1)\n a = a - 1\n"
        " b = b if b < 9 else b - 1\nprint(s + 1)"
    )
    inputs = ([7, 12], [10, 1], [3, 40])
    cases = [(everything, [(" ".join(map(str, n)), f"{run(everything, n)}\n") for n in inputs])]
    if language in ("python", "bash", "tcl", "lua"):
        problems = [make(random.Random(level), level, 2) for level in LEVELS]
        cases += [(problem.source, problem.tests) for problem in problems]
    for source, tests in cases:
        verdict = judged(render(source, language), language, tests=tests)
        assert verdict.passed == (True,) * len(tests), verdict.complaint


def test_a_language_added_by_a_file_needs_no_line_of_code(tmp_path):
    profile = tmp_path / "more.toml"
    profile.write_text('[awk]\nfile = "main.awk"\nrun = ["awk", "-f", "main.awk"]\npackages = ["mawk"]\n')
    languages.add(profile)
    assert judged("{ print $1 + $2 }", "awk").passed == (True, True)
    with pytest.raises(ConfigError, match="scripted expert does not know language 'awk'"):
        make_env(language="awk").oracle([])


def test_a_missing_compiler_is_a_clear_refusal(tmp_path):
    profile = tmp_path / "absent.toml"
    profile.write_text(
        '[cobol]\nfile = "main.cob"\nrun = ["no-such-cobol", "main.cob"]\npackages = ["gnucobol"]\n'
    )
    languages.add(profile)
    with pytest.raises(ConfigError, match="'no-such-cobol', which is not installed; install: gnucobol"):
        judged("DISPLAY 1", "cobol")


def test_expected_outputs_never_enter_the_sandbox():
    Recording.entered = b""
    tests = (("2 3\n", "8675309\n"), ("4 5\n", "8675310\n"))
    verdict = judged("a, b = map(int, input().split())\nprint(a * b)", backend=Recording.name, tests=tests)
    assert verdict.passed == (False, False)
    assert b"2 3\n" in Recording.entered and b"print(a * b)" in Recording.entered
    assert b"8675" not in Recording.entered


def test_each_attempt_runs_in_a_sandbox_without_what_the_last_one_left():
    leave = "import os\nprint(os.path.exists('left'))\nopen('left', 'w').close()"
    assert judged(leave, tests=(("", "False\n"), ("", "True\n"))).passed == (True, True)
    assert judged(leave, tests=(("", "False\n"),)).passed == (True,)


def test_wrong_output_is_answered_with_the_example_and_the_next_program_may_be_right():
    env = make_env(attempts=2)
    given, expected = env.problem.tests[0]
    first, second = play(env, "print(-1)", f"```python\n{env.oracle([])['content']}\n```")
    assert first.messages[0]["content"] == f"in: {given}expected: {expected}got: -1"
    assert (first.done, first.reward, first.components["compiled"]) == (False, 0.0, 1.0)
    assert (second.done, second.reward, second.success) == (True, 1.0, True)


def test_errors_become_observations():
    crash, none, tool = play(
        make_env(attempts=4), "1/0", "```\n```", Action("", (ToolCall("call-0", "run", {}),), ())
    )
    assert crash.messages[0]["content"].endswith("ZeroDivisionError: division by zero")
    assert none.messages[0]["content"] == "error: no program"
    assert tool.messages[0]["content"] == "error: there are no tools; answer with the program"


def test_a_compilers_message_becomes_an_observation():
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (step,) = play(make_env(language="c"), "int main() { return zero; }")
    assert "error: 'zero' undeclared" in step.messages[0]["content"].replace("‘", "'").replace("’", "'")
    assert step.components["compiled"] == 0.0


def test_hidden_tests_are_counted_but_not_shown():
    env = make_env(attempts=2, hidden_tests=3)
    given, expected = env.problem.tests[0]
    cheat = f"print({expected.strip()} if input() == {given.strip()!r} else -1)"
    (step,) = play(env, cheat)
    assert step.messages[0]["content"] == "3 of 3 hidden tests failed"


def test_reward_is_the_fraction_of_hidden_tests_or_all_of_them():
    half = "a, b = map(int, input().split())\nprint(a + b if a < 3 else 0)"
    for reward, score in (("fraction", 0.5), ("all", 0.0)):
        env = make_env(attempts=1, examples=0, hidden_tests=2, reward=reward)
        env.problem = type(env.problem)("sum", "", TESTS)
        (step,) = play(env, half)
        assert (step.reward, step.success, step.components["tests"]) == (score, False, 0.5)


def test_a_program_that_never_ends_fails_its_test_and_the_rest_are_not_run():
    verdict = judged("while True: pass", time_limit_s=0.3)
    assert (verdict.passed, verdict.complaint) == ((False,), "error: time limit exceeded")


def test_the_program_is_the_last_fenced_block_or_everything():
    assert extract("first\n```python\na\n```\nthen\n```\nb\nc\n```\n") == "b\nc"
    assert extract("print(1)\n") == "print(1)"


def test_outputs_are_compared_line_by_line_without_blanks_at_the_end():
    assert same("1 \n2\n\n", "1\n2\n")
    assert not same("1\n\n2", "1\n2")
    assert not same("1 2", "1\n2")


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="unknown language 'fortran'"):
        make_env(language="fortran")
    with pytest.raises(ValueError, match="reward: must be one of all, fraction, got 'most'"):
        make_env(reward="most")
    with pytest.raises(ValueError, match=r"time_limit_s: must be from 0.1 to 120, got 0"):
        make_env(time_limit_s=0)


def test_no_statement_stands_in_both_splits_and_all_tests_differ():
    for level in LEVELS:
        train = {make_env(seed, level=level).problem_key() for seed in range(0, 200, 2)}
        heldout = {make_env(seed, level=level).problem_key() for seed in range(1, 201, 2)}
        assert len(train) > 20 and not train & heldout
    assert len({given for given, _ in make_env(1, level=4).problem.tests}) == 5


@pytest.mark.slow
def test_code_passes_every_check():
    assert [f for f in check_env("code", num_tasks=5) if not f.ok] == []
