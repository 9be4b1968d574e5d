"""Tests of programs as data sets publish them, brought to what `judge_program` takes.

| columns | form |
|---|---|
| `prompt`, `test` with a `check(candidate)`, `entry_point` | HumanEval |
| `test_list` of assertions, `test_imports`, `test_setup_code`, `code` | MBPP |
| `public_test_cases`, `private_test_cases`, `metadata`, `starter_code` | LiveCodeBench |
| `input_output` or `reward_model.ground_truth`: `inputs`, `outputs`, `fn_name` | APPS, TACO, PRIME |
| `tests`: [input, output] pairs or tables; `check` with `prefix` and `functions` | of one's own |
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from asyncrl.extensions.program_rewards.extraction import defined, defining_block, last_block
from asyncrl.extensions.program_rewards.judging import Verdict, judge_calls, judge_check, judge_outputs

KNOWN = ("check", "calls", "tests", "test_list", "public_test_cases", "input_output", "test")


def program_tests(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's tests: `check` with `prefix`, `functions` and `head`; or `calls`; or `tests`. JSON.

    Raises `ValueError`, `KeyError` and `TypeError` saying what is wrong.
    """
    tests = _published(row)
    if why := _judges_nothing(tests):
        raise ValueError(why)
    return tests


def _published(row: Mapping[str, Any]) -> dict[str, Any]:
    if "check" in row:
        return {
            key: row[key]
            for key in ("check", "prefix", "functions", "head", "block")
            if row.get(key) is not None
        }
    if row.get("test") is not None and row.get("entry_point") is not None:
        return _humaneval(row)
    if row.get("test_list") is not None:
        return _mbpp(row)
    if row.get("public_test_cases") is not None or row.get("private_test_cases") is not None:
        return _livecodebench(row)
    if row.get("calls") is not None:
        return {"calls": row["calls"]}
    if row.get("tests") is not None:
        return {"tests": [_pair(one) for one in _parsed(row["tests"], "tests")]}
    model = row.get("reward_model")
    found = row.get("input_output", model.get("ground_truth") if isinstance(model, Mapping) else None)
    if found is not None:
        return _inputs_and_outputs(_parsed(found, "input_output"))
    raise KeyError(
        f"no tests: none of the columns {', '.join(KNOWN)}; the row has {', '.join(map(str, row)) or 'none'}"
    )


def _judges_nothing(tests: Mapping[str, Any]) -> str:
    """Return why these tests would pass whatever an answer does; empty where they would not."""
    if "check" in tests:
        return "" if _asserts(str(tests["check"])) else "the check asserts nothing: any program would pass"
    cases = tests["calls"]["tests"] if "calls" in tests else tests["tests"]
    if not cases:
        return "there are no tests"
    if "tests" in tests and not any(str(expected).strip() for _, expected in cases):
        return "no test expects any output: a program that prints nothing would pass"
    return ""


def _asserts(check: str) -> bool:
    """Return whether a check can fail: by an assertion of something, an exception or an exit."""
    try:
        nodes = list(ast.walk(ast.parse(check)))
    except (SyntaxError, ValueError):
        return True  # Whoever runs it says what is wrong.
    for node in nodes:
        if isinstance(node, ast.Raise) or (
            isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)
        ):
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name.startswith(("assert", "fail")) or name in ("exit", "_exit", "quit", "main"):
                return True
    return False


def program_of(text: str, tests: Mapping[str, Any]) -> str:
    """Return the program of an answer, by the rule of the tests' benchmark."""
    functions = tests.get("functions") or ()
    if "check" not in tests or tests.get("block") == "last" or not functions:
        return last_block(text)
    program = defining_block(text, functions)
    if tests.get("head") and not set(functions) & defined(program):
        # A continuation of the prompt, as models that only complete text give it.
        return f"{tests['head']}{program}"
    return program


async def judge_program(
    text: str, tests: Mapping[str, Any], *, time_limit_s: float, sandbox: str
) -> tuple[Verdict, int]:
    """Judge an answer by `program_tests`; return the verdict and the number of tests. Raises `NotJudged`."""
    program = program_of(text, tests)
    limits: dict[str, Any] = {"time_limit_s": time_limit_s, "sandbox": sandbox}
    if "check" in tests:
        prefix, functions = str(tests.get("prefix") or ""), tests.get("functions") or ()
        return await judge_check(
            program, str(tests["check"]), prefix=prefix, functions=functions, **limits
        ), 1
    if "calls" in tests:
        cases = [(list(arguments), expected) for arguments, expected in tests["calls"]["tests"]]
        return await judge_calls(program, str(tests["calls"]["name"]), cases, **limits), len(cases)
    pairs = [(str(given), str(expected)) for given, expected in tests["tests"]]
    return await judge_outputs(program, pairs, **limits), len(pairs)


def _humaneval(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt, entry, test = (_text(row, name) for name in ("prompt", "entry_point", "test"))
    before, is_defined, _ = prompt.partition(f"def {entry}(")
    if not is_defined:
        raise ValueError(f"the prompt does not define {entry!r}")
    if "def check(" not in test:
        raise ValueError("test: does not define check(candidate)")
    head = f"{prompt.rstrip()}\n"
    return {"prefix": before, "check": f"{test}\ncheck({entry})\n", "functions": [entry], "head": head}


def _mbpp(row: Mapping[str, Any]) -> dict[str, Any]:
    tests, imports = row["test_list"], row.get("test_imports") or []
    for name, value in (("test_list", tests), ("test_imports", imports)):
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise TypeError(f"{name}: must be a list of texts, got {value!r:.80}")
    if not tests:
        raise ValueError("test_list: is empty")
    setup = row.get("test_setup_code") or ""
    check = "\n".join([*imports, setup, *tests])
    reference = row.get("code")
    named = defined(reference) if isinstance(reference, str) else set()
    used = _called(check)
    return {"check": check, "functions": sorted(named & used if named & used else named or used)}


def _called(check: str) -> set[str]:
    """Return the names of functions that assertions call and that Python does not have."""
    import builtins
    import sys

    try:
        tree = ast.parse(check)
    except SyntaxError as error:
        raise ValueError(f"test_list: is no Python: {error}") from None
    found = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return {name for name in found if not hasattr(builtins, name) and name not in sys.stdlib_module_names}


def _livecodebench(row: Mapping[str, Any]) -> dict[str, Any]:
    tests = [*_cases(row, "public_test_cases"), *_cases(row, "private_test_cases")]
    if not tests:
        raise ValueError("there are no test cases")
    if all(one["testtype"] == "stdin" for one in tests):
        return {"tests": [[one["input"], one["output"]] for one in tests]}
    metadata = row["metadata"]
    name = (json.loads(metadata) if isinstance(metadata, str) else metadata)["func_name"]
    calls = [
        [[json.loads(line) for line in one["input"].split("\n") if line.strip()], json.loads(one["output"])]
        for one in tests
    ]
    return {"calls": {"name": name, "tests": calls}}


def _cases(row: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    try:
        found = _parsed(row.get(name) or [], name)
    except ValueError:
        # The benchmark's own form is a compressed pickle, which could run code.
        raise ValueError(f"{name}: must be a JSON list, got something compressed; decode it first") from None
    for one in found:
        if one.get("testtype", "stdin") not in ("stdin", "functional"):
            raise ValueError(f"{name}: testtype must be stdin or functional, got {one['testtype']!r}")
    return [{"testtype": "stdin"} | {key: str(value) for key, value in one.items()} for one in found]


def _inputs_and_outputs(found: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(found, Mapping) or "inputs" not in found or "outputs" not in found:
        raise ValueError("input_output: must have inputs and outputs")
    pairs = list(zip(found["inputs"], found["outputs"], strict=True))
    if not pairs:
        raise ValueError("input_output: has no tests")
    if found.get("fn_name"):
        return {"calls": {"name": found["fn_name"], "tests": [[list(one), other] for one, other in pairs]}}
    return {"tests": [[_joined(one), _joined(other)] for one, other in pairs]}


def _joined(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _pair(one: Any) -> list[str]:
    if isinstance(one, Mapping):
        return [str(one["input"]), str(one["output"])]
    given, expected = one
    return [str(given), str(expected)]


def _parsed(value: Any, name: str) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{name}: is no JSON: {error}") from error


def _text(row: Mapping[str, Any], name: str) -> str:
    if not isinstance(row[name], str):
        raise TypeError(f"{name}: must be text, got {row[name]!r:.80}")
    return str(row[name])
