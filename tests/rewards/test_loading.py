"""Rewards by name and from the user's own files: what they return, and what is said where they do not."""

import asyncio
import re
import sys

import pytest

from asyncrl.errors import ConfigError
from asyncrl.rewards import Completion, NotJudged, load_reward
from asyncrl.rewards.user_process import UserProcess

FUNCTIONS = """
import asyncio, os, signal, time

def f(completion, answer): return float(answer in completion)
def batch(completions, answer, **kwargs): return [float(a in c) for c, a in zip(completions, answer)]
def chat(completions, solution, **kwargs): return [float(s == c[0]["content"]) for c, s in zip(completions, solution)]
def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(ground_truth in solution_str), "length": len(solution_str)}
def rubric(completion, answer, state, **kwargs): return float(completion[-1]["content"] == answer == state["answer"])
def parsed(parser, completion, answer): return 1.0 if parser.parse_answer(completion) == answer else 0.0
async def slow(completion, answer):
    await asyncio.sleep(0.01)
    return answer in completion
def column(completion, difficulty): return difficulty
def alarm(completion):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    print("printed text is no answer")
    return 1
def raising(completion): return 1 / 0
def nan(completion): return float("nan")
def nothing(completion): return None
def text(completion): return "yes"
def short(completions): return [1.0]
def number(completions): return 1.0
def hanging(completion): time.sleep(1000)
async def waiting(completion): await asyncio.sleep(1000)
def dying(completion): os._exit(3)
def indexing(completions, answer): return [c[0]["content"] == a for c, a in zip(completions, answer)]
def parts(completion): return {"form": 1.0}
half = lambda completion: 0.5
def unknown(x, y): return 0
class Thing: pass
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(FUNCTIONS)
    return path


def said(text, **row):
    return Completion([{"role": "user", "content": "How much?"}], text, "", row)


def scored(spec, *completions):
    return asyncio.run(load_reward(spec).score(completions))


@pytest.mark.parametrize(
    ("name", "completions", "totals"),
    [
        ("f", [said("it is 42", answer="42"), said("no", answer="42")], [1.0, 0.0]),
        ("batch", [said("it is 42", answer="42"), said("no", answer="42")], [1.0, 0.0]),
        ("chat", [said("42", solution="42", prompt=[{"role": "user", "content": "q"}])], [1.0]),
        ("verl", [said("42", data_source="d", reward_model={"ground_truth": "42"})], [1.0]),
        ("rubric", [said("42", answer="42")], [1.0]),
        ("parsed", [said(r"so \boxed{42}", answer="42")], [1.0]),
        ("slow", [said("42", answer="42"), said("4", answer="42")], [1.0, 0.0]),
        ("column", [said("42", difficulty=3)], [3.0]),
        ("alarm", [said("42")], [1.0]),
    ],
)
def test_functions_are_called_as_they_are(file, name, completions, totals):
    assert [score.total for score in scored(f"{file}:{name}", *completions)] == totals


def test_a_table_of_a_function_gives_components(file):
    (score,) = scored(f"{file}:verl", said("42", reward_model={"ground_truth": "42"}))
    assert score.components == {"verl": 1.0, "length": 2.0}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("raising", "row 'r7': raised ZeroDivisionError: division by zero"),
        ("nan", "row 'r7': returned nan; a reward is a number"),
        ("nothing", "row 'r7': returned None, which is no number"),
        ("text", "row 'r7': returned 'yes', which is no number"),
        ("short", "row 'r7': returned 1 values for 2 completions"),
        ("number", "row 'r7': must return a list of 2 numbers, got"),
        ("dying", "its process ended before it returned"),
        ("column", "row 'r7': its parameter 'difficulty' is no column; the row has id"),
    ],
)
def test_a_function_that_gives_no_reward_is_a_failure_with_function_row_and_value(file, name, what):
    with pytest.raises(NotJudged) as failed:
        scored(f"{file}:{name}", said("42", id="r7"), said("43", id="r8"))
    assert what in str(failed.value)
    assert name in str(failed.value)


@pytest.mark.parametrize("name", ["hanging", "waiting"])
def test_a_function_that_hangs_is_ended(file, name):
    with pytest.raises(NotJudged, match=r"row 'r7': did not return within 0\.5 s"):
        scored([{"name": f"{file}:{name}", "timeout_s": 0.5}], said("42", id="r7"))


def test_a_list_is_a_weighted_sum_whose_parts_are_components(file):
    spec = ["math", {"name": f"{file}:f", "weight": 0.5}, f"{file}:nothing", "regex:^Answer"]
    (score,) = scored(spec, said(r"<think>Hm.</think>Answer: \boxed{42}", answer="42"))
    assert (score.total, score.success, score.extracted) == (2.5, True, "42")
    assert score.components == {"math": 1.0, "f": 1.0, "regex": 1.0}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mth", "data.reward: unknown reward 'mth'; did you mean 'math'?; allowed: math, exact"),
        ("", "data.reward: unknown reward ''"),
        ([], "data.reward: must name a reward, got []"),
        (
            "math,exact",
            'data.reward: unknown reward \'math,exact\'; several are a list, ["math", "exact"]; allowed',
        ),
        ("mine.f", "data.reward: unknown reward 'mine.f'; a function in a module is mine:f; allowed"),
        (
            "nowhere.py",
            "data.reward: unknown reward 'nowhere.py'; a function in a file is FILE.py:FUNCTION; allowed",
        ),
        ([{"nme": "math"}], "data.reward[0]: must be a text or a table with a name"),
        (
            [{"name": "math", "wight": 2}],
            "data.reward[0]: unknown key 'wight'; allowed: name, weight, timeout_s",
        ),
        ([{"name": "math", "weight": float("inf")}], "data.reward[0].weight: must be a number, got inf"),
        ([{"name": "math", "timeout_s": 3}], "data.reward[0].timeout_s: is for a function of your own"),
        ("regex:(", "data.reward: '(' is no regular expression"),
        ("nowhere.py:f", "data.reward: 'nowhere.py:f' cannot be imported"),
    ],
)
def test_a_reward_that_is_none_is_refused_with_key_value_and_what_is_allowed(spec, message):
    with pytest.raises(ConfigError) as refused:
        load_reward(spec)
    assert str(refused.value).startswith(message)


def test_all_names_and_forms_are_told_where_one_is_unknown():
    with pytest.raises(ConfigError) as refused:
        load_reward("regex")
    assert str(refused.value) == (
        "data.reward: unknown reward 'regex'; allowed: math, exact, choice, code, ifeval, regex:PATTERN, "
        "my.py:function, my_pkg.module:function, or a list of these with weights"
    )


def test_a_module_may_have_the_name_of_a_reward(tmp_path, monkeypatch):
    (tmp_path / "math_2.py").write_text("def f(completion): return 2.0\n")
    (tmp_path / "code.py").write_text("def f(completion): return 3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "code", raising=False)
    assert [scored(f"{name}:f", said("x"))[0].total for name in ("math_2", "code")] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("name", "why"), [("unknown", "takes (x, y), none of which gets"), ("Thing", "must be a function")]
)
def test_a_function_that_no_call_fits_is_refused_at_the_start(file, name, why):
    with pytest.raises(ConfigError) as refused:
        load_reward(f"{file}:{name}", key="env.config.reward")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "row", "why"),
    [
        ("math", {"question": "q"}, "no column answer"),
        ("code", {"prompt": "p"}, "no tests"),
        ("ifeval", {"prompt": "p"}, "no column 'instruction_id_list'"),
    ],
)
def test_a_row_to_which_nothing_can_be_right_is_told(spec, row, why):
    assert why in (load_reward(spec).check_row(row) or "")


def test_good_rows_have_no_complaint(file):
    assert load_reward("math").check_row({"answer": "#### 18"}) is None
    assert load_reward("choice").check_row({"answer": 1, "choices": ["x", "y"]}) is None
    assert load_reward([f"{file}:f", "exact"]).check_row({"answer": "x"}) is None
    assert load_reward(f"{file}:column").check_row({"answer": "x"}) == (
        "its parameter 'difficulty' is no column; the row has answer"
    )


def test_a_file_without_a_function_is_told_one_that_it_has(file):
    with pytest.raises(
        ConfigError, match=re.escape(f"a function in a file is FILE.py:FUNCTION, such as {file}:f;")
    ):
        load_reward(str(file))


def test_a_reward_is_known_by_the_name_it_has_in_its_file(file):
    """A lambda's own name is no name of a component, and two parts of one name are told apart."""
    (score,) = scored([f"{file}:half", f"{file}:half"], said("42"))
    assert (score.total, score.components) == (1.0, {"half": 0.5, "half_2": 0.5})


def test_a_function_that_expects_another_kind_is_told_what_it_was_called_with(file):
    with pytest.raises(
        NotJudged,
        match=r"raised TypeError.*; it was called with completions: list of str, answer: list of int",
    ):
        scored(f"{file}:indexing", said("42", answer=42))


def test_a_table_without_the_reward_says_what_is_missing(file):
    with pytest.raises(NotJudged, match="returned a table without 'score', the number that is the reward"):
        scored(f"{file}:parts", said("42"))


@pytest.mark.parametrize("count", [1, 2])
def test_a_process_that_does_not_start_takes_no_place_from_the_next(count):
    """Calls would else wait for a place for good, once as many have failed as there may be."""
    ends = UserProcess([sys.executable, "-c", "raise SystemExit(3)"], {}, count, "mine.py:f")

    async def ask_often():
        for _ in range(count + 2):
            with pytest.raises(
                NotJudged, match=r"reward mine\.py:f: its process did not start: it ended before"
            ):
                await asyncio.wait_for(ends.ask("[]", 60.0), 300.0)

    asyncio.run(ask_often())
