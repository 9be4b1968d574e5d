"""Benchmark files become tasks, and their environments judge right and wrong answers to them."""

import asyncio
import inspect
import json

import pytest

from asyncrl.commands.config_page import descriptions
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.registry import load_env
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.benchmarks.importers.records import FORMATS, import_tasks
from asyncrl.extensions.table import by_name
from asyncrl.sandbox.backends import choose

GSM = {
    "question": "Ann has 6 eggs and buys 1,200 more. How many?",
    "answer": "6 + 1200 = <<6+1200=1206>>1,206\n#### 1,206",
}
MATH = {
    "problem": "Halve one.",
    "solution": r"So \boxed{2}, no: \boxed{\frac{1}{2}}.",
    "level": "Level 1",
    "type": "Algebra",
    "unique_id": "algebra/1",
}
AIME = {"ID": "2099-I-1", "Problem": "What is 7 times 9?", "Answer": 63}
HUMAN = {
    "task_id": "Human/0",
    "prompt": 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """Add the numbers."""\n',
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
    "entry_point": "total",
}
MBPP = {
    "task_id": 11,
    "text": "Write a function twice.",
    "test_list": ["assert twice(2) == 4", "assert math.isclose(twice(0.5), 1)"],
    "test_imports": ["import math"],
}
LCB = {
    "question_id": "p1",
    "question_content": "Print the sum of two numbers.",
    "platform": "site",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "5 6\n", "output": "11", "testtype": "stdin"}]),
}
METHOD = {
    "question_id": "p2",
    "question_content": "Return the larger.",
    "starter_code": "class Solution:\n    def larger(self, a: int, b: int) -> int:\n",
    "public_test_cases": [{"input": "1\n2", "output": "2", "testtype": "functional"}],
    "metadata": '{"func_name": "larger"}',
}
BFCL = {
    "id": "simple_0",
    "question": [[{"role": "user", "content": "Weather in Rome, and in celsius if you can?"}]],
    "function": [
        {
            "name": "weather",
            "description": "Tell the weather.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"type": "string"},
                    "days": {"type": "float"},
                },
                "required": ["city"],
            },
        }
    ],
    "ground_truth": [{"weather": {"city": ["Rome", "Roma"], "unit": ["celsius", ""], "days": [1.0, ""]}}],
}


IFEVAL = {
    "key": 1000,
    "prompt": "Say hello without commas.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{}, {"relation": "at least", "num_words": 3}],
}
DIALOGUE = {
    "id": "multi_turn_base_0",
    "question": [[{"role": "user", "content": "How much is 2 + 2?"}]],
    "initial_config": {},
    "involved_classes": ["MathAPI"],
    "ground_truth": [["add(a=2,b=2)"]],
}


def imported(tmp_path, name, *records):
    file = tmp_path / "file.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return import_tasks(name, file)


def judged(task, content, *calls):
    """The verdict of a task's environment on one turn."""

    async def play():
        env = load_env(task.env)(task)
        messages = env.reset()
        assert messages[-1]["role"] == "user"
        tool_calls = tuple(ToolCall(f"call{n:05d}", *call) for n, call in enumerate(calls))
        step = env.step(Action(content, tool_calls))
        step = await step if inspect.isawaitable(step) else step
        assert step.done and step.reward == float(step.success)
        return step.success

    return asyncio.run(play())


@pytest.mark.slow
def test_questions_of_three_benchmarks_are_judged_as_all_math_is(tmp_path):
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    eggs, half, product = imported(tmp_path, "math", GSM, MATH, AIME)
    assert [task.id for task in (eggs, half, product)] == ["file-1", "algebra/1", "2099-I-1"]
    assert [task.data["answer"] for task in (eggs, half, product)] == ["1206", r"\frac{1}{2}", "63"]
    assert (half.data["tags"], half.data["level"]) == (["Algebra"], "Level 1")
    assert judged(eggs, r"First add. \boxed{1206}")
    assert not judged(eggs, r"\boxed{1207}")
    assert judged(half, "0.5") and judged(half, r"\boxed{1/2}")
    assert not judged(half, "")
    assert judged(product, "thinking...\n63")


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"So $\boxed{f = \left\{ 1 \right.}$. And {more}", r"f = \left\{ 1 \right."),
        (r"So $\boxed 5$.", "5"),
        (r"So \fbox{5}.", "5"),
    ],
)
def test_the_gold_of_a_solution_is_its_box(tmp_path, solution, answer):
    (task,) = imported(tmp_path, "math", {"problem": "q", "solution": solution})
    assert task.data["answer"] == answer


def test_golds_that_nothing_can_match_are_counted(tmp_path):
    with pytest.raises(InputError) as refused:
        imported(tmp_path, "math", GSM, {**GSM, "answer": "nan"}, {**GSM, "answer": "#### "})
    assert "line 2: the answer is 'nan'; 2 of 3 records have an answer that nothing can match" in str(
        refused.value
    )


@pytest.fixture
def sandbox():
    try:
        asyncio.run(choose("auto"))
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_functions_are_judged_by_the_benchmarks_own_tests_in_the_sandbox(tmp_path, sandbox):
    (total,) = imported(tmp_path, "humaneval", HUMAN)
    right = "```python\ndef total(numbers: List[int]) -> int:\n    return sum(numbers)\n```"
    assert judged(total, f"Here it is.\n{right}")
    assert judged(total, right.replace("def", "print('x' * 5000)\ndef")), "what it prints does not matter"
    assert not judged(total, right.replace("sum(numbers)", "3"))
    assert not judged(total, "```python\nimport os\nos._exit(0)\n```"), "one that ends early passes nothing"
    assert not judged(total, "```python\nprint('passed'); raise SystemExit(0)\n```")
    assert not judged(total, "I do not know.")
    (twice,) = imported(tmp_path, "mbpp", MBPP)
    assert twice.id == "11" and "assert twice(2) == 4" in twice.data["statement"]
    assert judged(twice, "def twice(x):\n    return 2 * x")
    assert not judged(twice, "def twice(x):\n    return 4")


@pytest.mark.slow
def test_programs_are_judged_by_their_output_or_by_a_method(tmp_path, sandbox):
    add, larger = imported(tmp_path, "livecodebench", LCB, METHOD)
    assert add.data["tests"] == [["1 2\n", "3\n"], ["5 6\n", "11"]] and add.data["tags"] == ["site"]
    assert judged(add, "print(sum(map(int, input().split())))")
    assert not judged(add, "print(3)")
    method = "class Solution:\n    def larger(self, a: int, b: int) -> int:\n        return {}"
    assert judged(larger, method.format("max(a, b)"))
    assert not judged(larger, method.format("a"))


def test_calls_are_compared_by_the_values_that_are_right(tmp_path):
    (weather,) = imported(tmp_path, "bfcl", BFCL)
    parameters = weather.data["tools"][0]["function"]["parameters"]
    assert parameters["type"] == "object" and parameters["properties"]["days"]["type"] == "number"
    right = ("weather", {"city": "rome", "days": 1})
    assert judged(weather, "", right)
    assert judged(weather, "", ("weather", {"city": "Roma", "unit": "Celsius"}))
    for wrong in (
        ("weather", {"city": "Paris"}),
        ("weather", {"unit": "celsius"}),
        ("weather", {"city": "Rome", "hour": 3}),
        ("weather", {"city": "Rome", "days": True}),
        ("forecast", {"city": "Rome"}),
    ):
        assert not judged(weather, "", wrong), wrong
    assert not judged(weather, "", right, right)
    assert not judged(weather, "It is sunny.")
    two = {**BFCL, "ground_truth": [{"weather": {"city": [name]}} for name in ("Rome", "Oslo")]}
    (parallel,) = imported(tmp_path, "bfcl", two)
    assert judged(parallel, "", ("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}))
    (irrelevant,) = imported(tmp_path, "bfcl", {**BFCL, "ground_truth": []})
    assert judged(irrelevant, "I cannot tell.") and not judged(irrelevant, "", right)


def without(record, *names):
    return {key: value for key, value in record.items() if key not in names}


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("math", without(GSM, "answer"), "'solution' is missing; expected: question or problem"),
        ("math", {**MATH, "solution": "two"}, r"the solution has no \boxed{...}"),
        ("math", {**MATH, "solution": r"\boxed{2"}, r"the solution has no \boxed{...}"),
        ("math", {**GSM, "answer": "####"}, "the answer is empty"),
        ("math", {**GSM, "question": 3}, "question: must be text, got 3"),
        ("humaneval", without(HUMAN, "test"), "'test' is missing; expected: prompt (the head of a function)"),
        ("humaneval", {**HUMAN, "entry_point": "sums"}, "the prompt does not define 'sums'"),
        ("humaneval", {**HUMAN, "test": "assert 1"}, "does not define check(candidate)"),
        ("mbpp", {**MBPP, "test_list": "assert 1"}, "test_list: must be a list of texts"),
        ("mbpp", {**MBPP, "test_list": []}, "test_list: is empty"),
        ("livecodebench", {**LCB, "private_test_cases": "eJxr"}, "got something compressed; decode it first"),
        ("livecodebench", without(LCB, "public_test_cases", "private_test_cases"), "there are no test cases"),
        ("bfcl", without(BFCL, "ground_truth"), "'ground_truth' is missing; expected: question"),
        ("bfcl", {**BFCL, "ground_truth": [{"fly": {}}]}, "there is no function 'fly'"),
        ("bfcl", {**BFCL, "question": BFCL["question"] * 2}, "question: has 2 turns"),
        ("bfcl", {**BFCL, "question": "hello"}, "question: must be a list of messages"),
        (
            "bfcl_multi_turn",
            without(DIALOGUE, "initial_config"),
            "'initial_config' is missing; expected: id, question",
        ),
        ("bfcl_multi_turn", {**DIALOGUE, "question": [[]]}, "question: turn 0 says nothing"),
        (
            "bfcl_multi_turn",
            {**DIALOGUE, "ground_truth": []},
            "ground_truth: must be a list of lists of calls",
        ),
        ("bfcl_multi_turn", {**DIALOGUE, "ground_truth": [[], []]}, "has 2 turns for 1 of the question"),
        ("bfcl_multi_turn", {**DIALOGUE, "involved_classes": "MathAPI"}, "must be a list of names"),
        ("bfcl_multi_turn", {**DIALOGUE, "initial_config": []}, "initial_config: must be an object"),
        ("ifeval", without(IFEVAL, "kwargs"), "'kwargs' is missing; expected: prompt, instruction_id_list"),
        ("ifeval", {**IFEVAL, "kwargs": [{}]}, "kwargs: there are 1 for 2 instructions"),
        ("ifeval", {**IFEVAL, "kwargs": "{}"}, "kwargs: must be a list of objects"),
        ("ifeval", {**IFEVAL, "instruction_id_list": []}, "instruction_id_list: must be a list of names"),
    ],
)
def test_a_wrong_line_is_refused_with_file_line_and_what_is_expected(tmp_path, name, record, message):
    good = {
        "math": GSM, "humaneval": HUMAN, "mbpp": MBPP, "livecodebench": LCB, "bfcl": BFCL, "ifeval": IFEVAL,
        "bfcl_multi_turn": DIALOGUE,
    }[name]  # fmt: skip
    with pytest.raises(InputError) as refused:
        imported(tmp_path, name, good, record)
    assert str(refused.value).startswith(f"{tmp_path / 'file.jsonl'}, line 2: ")
    assert message in str(refused.value)
    assert "expected: " in str(refused.value)


def test_a_file_may_be_a_list_or_parquet_and_its_ids_are_different(tmp_path):
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "list.json").write_text(json.dumps([GSM, GSM]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([GSM, GSM]), tmp_path / "table.parquet")
    assert [task.id for task in import_tasks("math", tmp_path / "list.json")] == ["list-1", "list-2"]
    assert [task.id for task in import_tasks("math", tmp_path / "table.parquet")] == ["table-1", "table-2"]
    with pytest.raises(InputError, match="line 2: id 'algebra/1' stands on line 1 already"):
        imported(tmp_path, "math", MATH, MATH)
    with pytest.raises(InputError, match="holds no task"):
        imported(tmp_path, "math")
    (tmp_path / "file.jsonl").write_text("{}\nno json\n")
    with pytest.raises(InputError, match="line 1: "):
        import_tasks("math", tmp_path / "file.jsonl")
    (tmp_path / "file.jsonl").write_text("[1]")
    with pytest.raises(InputError, match="line 1: must be an object, got int"):
        import_tasks("math", tmp_path / "file.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        import_tasks("math", tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("record", "question", "answer"),
    [
        (
            {"Body": "Jo has 3 pens.", "Question": "How many?", "Answer": 3.0},
            "Jo has 3 pens.\nHow many?",
            "3.0",
        ),
        (
            {"body": "Jo has 3 pens.", "question": "How many?", "answer": "3"},
            "Jo has 3 pens.\nHow many?",
            "3",
        ),
        ({"question": "Which?", "choices": ["x", "y"], "answer": 1}, "Which?\nA: x\nB: y", "B"),
        ({"passage": "A text.", "question": "What?", "answer": "4"}, "A text.\nWhat?", "4"),
    ],
)
def test_what_belongs_to_a_question_is_part_of_it(tmp_path, record, question, answer):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(record))
    (task,) = import_tasks("math", path)
    assert (task.data["question"], task.data["answer"]) == (question, answer)


def test_fields_that_no_question_shows_are_named(tmp_path, caplog):
    path = tmp_path / "q.jsonl"
    path.write_text(
        json.dumps({"question": "q", "answer": "1", "solution": "s", "level": 2, "figure": "a square"})
    )
    import_tasks("math", path)
    assert f"{path}: fields that no question shows: figure" in caplog.text


def test_every_format_is_told_in_the_suites_documentation():
    from asyncrl.extensions.benchmarks.suite import SuitePart

    told = descriptions(SuitePart)["format"]
    assert all(name in told for name in FORMATS)


def test_every_format_is_a_row_of_the_seam():
    assert set(by_name("data_formats")) == set(FORMATS)
