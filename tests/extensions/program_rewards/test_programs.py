"""Programs are judged as their benchmarks judge, and cannot reach what judges them."""

import asyncio
import gzip
import json
import os
from pathlib import Path

import pytest

from asyncrl.agent_time import of_step
from asyncrl.errors import ConfigError
from asyncrl.extensions.program_rewards.extraction import blocks, defining_block, last_block
from asyncrl.extensions.program_rewards.judging import judge_calls, judge_check, judge_outputs, same_output
from asyncrl.extensions.program_rewards.published import judge_program, program_of, program_tests
from asyncrl.extensions.program_rewards.values import decode, encode
from asyncrl.rewards import Completion, NotJudged, load_reward
from asyncrl.sandbox.backends import choose
from asyncrl.sandbox.jail.client import LauncherClient

DATA = Path(os.environ.get("ASYNCRL_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
ADD = "def check(c):\n    assert c(1, 2) == 3\n    assert c(5, 5) == 10\ncheck(add)\n"
METHOD = "class Solution:\n    def f(self, a):\n        "


@pytest.fixture(autouse=True)
def sandbox():
    try:
        asyncio.run(choose("auto"))
    except ConfigError as error:
        pytest.skip(str(error))


def run(judging):
    async def whole():
        try:
            return await judging
        finally:
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def passes(program, check=ADD, **more):
    return run(judge_check(program, check, time_limit_s=20.0, **more)).passed == (True,)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "class A:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\ndef add(*a): return A()",
        "class A(int):\n    def __eq__(s, o): return True\ndef add(*a): return A(0)",
        "import builtins\nbuiltins.compile = lambda *a, **k: None\nbuiltins.exec = lambda *a, **k: None\n"
        "def add(*a): return 0",
        "import os\ndef add(*a): os._exit(0)",
        "def add(*a): raise SystemExit(0)",
        'import os, json\nfor fd in range(3, 20):\n    try: os.write(fd, b\'{"verdict": "passed", "why": ""}\\n\')\n'
        "    except OSError: pass\ndef add(*a): return 0",
        "import os\nos.kill(os.getppid(), 9)\ndef add(*a): return 0",
        "import sys, gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'check' in o: o['check'] = 'pass'\n"
        "def add(*a): return 0",
        "def add(*a): return [add]",
        "def check(c): pass\ndef add(*a): return 0",
        "",
        "def add(:",
    ],
)
def test_a_program_that_does_not_solve_earns_nothing(program):
    assert not passes(program)


@pytest.mark.slow
def test_a_program_that_solves_passes_whatever_it_prints_and_however_it_ends():
    assert passes("print('x' * 10**6)\ndef add(a, b): return a + b")
    assert passes("def add(a, b): return a + b\nexit()")


@pytest.mark.slow
def test_a_program_cannot_replace_what_its_tests_use():
    check = "def check(c):\n    assert abs(c(1) - 5) < 1e-6 and math.isclose(c(1), 5)\ncheck(f)\n"
    cheat = "abs = lambda x: 0\nclass math:\n    isclose = lambda *a: True\ndef f(x): return 0"
    assert not passes(cheat, check, functions=["f"])
    assert passes("def f(x): return 5", check, functions=["f"])
    helped = "def check(c):\n    assert twice(c(1)) == 4\ncheck(f)\n"
    assert not passes(
        "def twice(x): return 4\ndef f(x): return 0", helped, prefix="def twice(x): return 2 * x\n"
    )


@pytest.mark.slow
def test_tests_see_what_mbpps_tests_need():
    counter = "from collections import Counter\ndef f(x): return Counter(x)"
    assert passes(counter, "assert f([1, 1, 2]) == {1: 2, 2: 1}")
    assert passes("def sum(a, b): return 6", "assert sum(10, 15) == 6", functions=["sum"])
    pair = "class Pair:\n    def __init__(s, a, b): s.a, s.b = a, b\ndef f(x): return x[0].a + x[1].b"
    assert passes(pair, "assert f([Pair(1, 2), Pair(3, 4)]) == 5")
    assert passes("def f(x): x.append(1)", "a = [0]\nf(a)\nassert a == [0, 1]")
    assert passes("def f(x): return (i for i in range(x))", "assert list(f(3)) == [0, 1, 2]")
    raising = "try:\n    f(0)\n    assert False, 'no error'\nexcept ValueError:\n    pass"
    assert passes("def f(x): raise ValueError('no')", raising)
    assert not passes("def f(x): raise TypeError('no')", raising)


@pytest.mark.slow
def test_tests_that_are_broken_judge_nobody():
    with pytest.raises(NotJudged, match="the tests cannot be read: SyntaxError"):
        passes("def f(): pass", "assert f( ==")
    with pytest.raises(NotJudged, match="the tests pass an object of type function to the program"):
        passes("def f(g): return g(1)", "assert f(lambda x: x) == 1")


@pytest.mark.slow
def test_a_program_that_sleeps_fails_within_the_steps_budget():
    async def whole():
        slow = "import time\ndef add(a, b):\n    time.sleep(600)"
        with of_step(15.0):
            check = await judge_check(slow, ADD, time_limit_s=120.0)
        with of_step(15.0):
            calls = await judge_calls(slow, "add", [([1, 2], 3)] * 9, time_limit_s=120.0)
        with of_step(15.0):
            outputs = await judge_outputs("import time\ntime.sleep(600)", [("", "1")] * 9, time_limit_s=120.0)
        return check, calls, outputs

    check, calls, outputs = run(whole())
    assert (check.passed, check.why) == ((False,), "time limit exceeded")
    assert (calls.passed, calls.why) == ((False,), "time limit exceeded")
    assert (outputs.passed, outputs.why) == ((False,), "time limit exceeded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "given", "expected", "right"),
    [
        ("a, b = map(int, input().split())\nprint('%.2f' % (a / b))", "1 2\n", "0.5\n", True),
        ("print(6 / 2)", "", "3", True),
        ("print(0.51)", "", "0.5", False),
        ("print(' 1')\nprint('2 ')", "", "1\n2\n", True),
        ("print(int(math.sqrt(4)), defaultdict(int)[1])", "", "2 0", True),
        ("def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(5000))", "", "5000", True),
        ("print(1)\nexit(1)", "", "1", True),
        ("print(1)\nraise ValueError", "", "1", False),
        ("print(10**5000)", "", "1" + "0" * 5000, False),
        ("import numpy\nprint(numpy.arange(3).sum())", "", "3", True),
    ],
)
def test_outputs_are_judged_by_livecodebenchs_rule(program, given, expected, right):
    assert run(judge_outputs(program, [(given, expected)], time_limit_s=30.0)).passed == (right,)


@pytest.mark.slow
def test_methods_are_judged_by_livecodebenchs_rule():
    def judged(body, *tests):
        return run(judge_calls(METHOD + body, "f", tests, time_limit_s=30.0)).passed

    assert judged("return tuple(a)", ([[1, 2]], [1, 2])) == (True,)
    assert judged("return [tuple(a)]", ([[1, 2]], [[1, 2]])) == (False,)
    assert judged("heapq.heapify(a)\n        return min(inf, heappop(a))", ([[3, 1]], 1)) == (True,)
    assert judged("return sum(a)", ([[1, 2]], 3), ([[1]], 2), ([[4]], 4)) == (True, False, True)
    equal = "class A:\n            def __eq__(s, o): return True\n        return A()"
    assert judged(equal, ([[1, 2]], 3)) == (False,)
    assert run(judge_calls("def f(a): return a", "f", [([1], 1)], time_limit_s=30.0)).passed == (True,)


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True),
        (" 1 \n2", "1\n 2\n\n", True),
        ("1.50 2", "1.5 2.0", True),
        ("1\n\n2", "1\n2", False),
        ("yes", "Yes", False),
        ("nan", "nan", True),
        ("1e400", "1e401", False),
    ],
)
def test_outputs_that_are_the_same(printed, expected, same):
    assert same_output(printed, expected) is same


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not (DATA / "HumanEval.jsonl.gz").exists(), reason=f"there is no HumanEval in {DATA}")
def test_every_twentieth_of_humanevals_solutions_passes_and_others_do_not():
    with gzip.open(DATA / "HumanEval.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    # And those whose tests use helpers of the prompt.
    chosen = [*rows[::20], *(row for row in rows if row["task_id"] in ("HumanEval/32", "HumanEval/38"))]

    async def whole():
        found = []
        for row in chosen:
            tests = program_tests(row)
            whole_function = (
                f"So:\n```python\n{row['prompt']}{row['canonical_solution']}\n```\nUse:\n```\nf(1)\n```"
            )
            for text in (
                whole_function,
                row["canonical_solution"],
                f"```python\n{row['prompt']}    return None\n```",
            ):
                verdict, _ = await judge_program(text, tests, time_limit_s=60.0, sandbox="auto")
                found.append(verdict.passed[0])
        return found

    assert run(whole()) == [True, True, False] * len(chosen)


def test_which_block_counts_is_the_benchmarks_rule():
    answer = "First:\n```python\ndef f(): return 1\n```\nUse it:\n```python\nprint(f())\n```"
    assert last_block(answer) == "print(f())"
    assert defining_block(answer, ["f"]) == "def f(): return 1"
    assert defining_block("```\nx = 1\n```\n```\ndef f(): pass\n```", ["f"]) == "def f(): pass"
    assert defining_block("def f(): pass", ["f"]) == "def f(): pass"
    assert blocks("```print(1)```\n```\nnever closed") == ["print(1)", "never closed"]
    assert last_block("<think>```\nx\n```</think>y") == "y"


@pytest.mark.parametrize(
    "answer",
    [
        "[BEGIN]\ndef f(): return 1\n[DONE]",
        "Sure:\n[BEGIN]\ndef f(): return 1\n[DONE]\nYou are an expert",
        "def f(): return 1\n[DONE]\n[BEGIN]\ndef f(): return 2\n[DONE]",
    ],
)
def test_marks_of_mbpps_own_prompt_are_no_program(answer):
    # The prompt may end in the first mark; what a model writes on after the last is another task.
    assert defining_block(answer, ["f"]).startswith("def f(): return 1")
    assert "DONE" not in defining_block(answer, ["f"])


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0c", "\x1c"])
def test_characters_that_only_some_call_the_end_of_a_line_stay_in_a_programs_texts(end):
    assert last_block(f"```python\nprint('a{end}b')\n```") == f"print('a{end}b')"
    assert last_block("```python\r\na = 1\r\nprint(a)\r\n```") == "a = 1\nprint(a)"


def test_a_continuation_is_put_behind_the_prompt():
    tests = program_tests(
        {
            "prompt": "def f(x):\n    '''Say x.'''\n",
            "entry_point": "f",
            "test": "def check(c): assert c(1) == 1",
        }
    )
    assert program_of("    return x\n", tests) == "def f(x):\n    '''Say x.'''\n    return x"
    assert program_of("def f(x): return x", tests) == "def f(x): return x"


@pytest.mark.parametrize(
    ("row", "tests"),
    [
        ({"tests": [["1", "2"]]}, {"tests": [["1", "2"]]}),
        ({"tests": '[{"input": 1, "output": 2}]'}, {"tests": [["1", "2"]]}),
        ({"input_output": '{"inputs": ["1"], "outputs": ["2"]}'}, {"tests": [["1", "2"]]}),
        (
            {"reward_model": {"ground_truth": {"inputs": [[1]], "outputs": [2], "fn_name": "f"}}},
            {"calls": {"name": "f", "tests": [[[1], 2]]}},
        ),
        (
            {"test_list": ["assert f(1) == set([2])"], "code": "import re\ndef g(): pass\ndef f(x): pass"},
            {"check": "\nassert f(1) == set([2])", "functions": ["f"]},
        ),
        (
            {"test_list": ["assert math.isclose(f(1), 2)"]},
            {"check": "\nassert math.isclose(f(1), 2)", "functions": ["f"]},
        ),
    ],
)
def test_tests_are_read_as_data_sets_publish_them(row, tests):
    assert program_tests(row) == tests


@pytest.mark.slow
def test_the_reward_code_runs_the_rows_tests():
    reward = load_reward("code")
    row = {"tests": [["1 2\n", "3"], ["2 2\n", "4"]]}
    right, half = "print(sum(map(int, input().split())))", "print(3)"
    given = [Completion([], f"```python\n{program}\n```", "", row) for program in (right, half)]
    one, other = run(reward.score(given))
    assert (one.total, one.components, one.success, one.extracted) == (
        1.0,
        {"code": 1.0, "tests": 1.0},
        True,
        right,
    )
    assert (other.total, other.components, other.success) == (0.0, {"code": 0.0, "tests": 0.5}, False)


def test_values_cross_as_exact_built_in_types():
    import collections
    import datetime
    import decimal
    import enum
    import fractions

    class Always(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Color(enum.IntEnum):
        RED = 1

    Point = collections.namedtuple("Point", "x y")
    values = [
        *(
            None,
            True,
            1,
            2**80,
            -0.0,
            "x",
            b"x",
            1j,
            [1, (2,)],
            {1, 2},
            frozenset({1}),
            {1: [2], (1, 2): 3},
            range(3),
        ),
        *(
            float("inf"),
            fractions.Fraction(1, 3),
            decimal.Decimal("1.10"),
            datetime.date(2020, 1, 2),
            Ellipsis,
        ),
        *(collections.deque([1]), datetime.timedelta(1, 2, 3), bytearray(b"x")),
    ]
    for value in values:
        there = decode(json.loads(json.dumps(encode(value, None))), None)
        assert (there, type(there)) == (value, type(value))
    for value, base in (
        (Always(0), 0),
        (Color.RED, 1),
        (Point(1, 2), (1, 2)),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.defaultdict(list, {1: [2]}), {1: [2]}),
    ):
        there = decode(json.loads(json.dumps(encode(value, None))), None)
        assert (there, type(there)) == (base, type(base))


@pytest.mark.parametrize(
    "wrong", [{}, [], 1.5, {"x": 1}, {"l": 3}, {"d": [[1]]}, {"i": "1 + 1"}, {"T": ["eval", "1"]}]
)
def test_what_is_no_value_is_refused(wrong):
    with pytest.raises(ValueError, match=r"no value|not enough|invalid literal"):
        decode(wrong, None)


def test_values_that_never_end_are_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested too deeply"):
        encode(endless, None)


HUMANEVAL = {"prompt": "def f(x):\n", "entry_point": "f"}
NOTHING_JUDGED = [
    ({"tests": []}, "there are no tests"),
    ({"calls": {"name": "f", "tests": []}}, "there are no tests"),
    ({"tests": [["1\n", ""], ["2\n", "\n"]]}, "no test expects any output"),
    ({"check": "def check(c):\n    pass\ncheck(f)\n", "functions": ["f"]}, "the check asserts nothing"),
    (HUMANEVAL | {"test": "def check(candidate):\n    pass\n"}, "the check asserts nothing"),
    (HUMANEVAL | {"test": "def check(candidate):\n    candidate(1)\n    assert True\n"}, "asserts nothing"),
    ({"test_list": ["import math"], "code": "def f(x): return x"}, "the check asserts nothing"),
]


@pytest.mark.parametrize(("row", "why"), NOTHING_JUDGED)
def test_tests_that_every_program_passes_are_refused(row, why):
    # polyglot-benchmark#14: no test was run, and the reward was 1.
    with pytest.raises(ValueError, match=why):
        program_tests(row)
    assert why in (load_reward("code").check_row(row) or "")


@pytest.mark.parametrize(
    "check",
    [
        ADD,
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(1), 1)\n",
        "if f(1) != 1:\n    raise ValueError\n",
        "import sys\nsys.exit(f(1) != 1)\n",
        "from numpy.testing import assert_allclose\nassert_allclose(f(1), 1)\n",
    ],
)
def test_checks_that_can_fail_are_taken_whatever_their_form(check):
    assert program_tests({"check": check, "functions": ["f"]})["check"] == check


FAILING = ("raise ValueError('no')", "import os; os._exit(0)", "exit()", "quit(0)", "raise SystemExit")


@pytest.mark.parametrize("expected", ["", None, False, 0, [], {}])
@pytest.mark.parametrize("body", FAILING)
def test_a_function_that_raises_is_wrong_whatever_was_expected(expected, body):
    # verl#7853: a function that raised was right where nothing was expected of it.
    row = {"input_output": {"fn_name": "solve", "inputs": [[1]], "outputs": [expected]}}
    completion = Completion([], f"```python\ndef solve(x): {body}\n```", "", row)
    (score,) = asyncio.run(load_reward("code").score([completion]))
    assert score.total == 0.0
