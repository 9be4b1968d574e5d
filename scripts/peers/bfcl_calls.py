"""BFCL's own checker beside `asyncrl.envs.benchmarks.call_checks`, on the calls of its data and variations of each.

Runs in a virtual environment of its own; the checker needs nothing but the package itself:

    python -m venv PEER && PEER/bin/pip install --no-deps bfcl-eval==2026.3.23
    PEER/bin/pip install msgpack numpy && PEER/bin/pip install --no-deps -e .
    PEER/bin/python scripts/peers/bfcl_calls.py [--table FILE]

For each question of the Python categories the right calls are made, and variations of them: an argument is left out,
added, renamed, given another type, case, order or value. Prints how often the two agree, and each difference.
`--table tests/envs/bfcl_calls.json` judges the calls of our test by BFCL's checker instead.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bfcl_eval

# The checker imports a table of models for names with dots, and with that the clients of all vendors.
models = types.ModuleType("bfcl_eval.constants.model_config")
models.MODEL_CONFIG_MAPPING = collections.defaultdict(  # type: ignore[attr-defined]
    lambda: types.SimpleNamespace(underscore_to_dot=False)
)
sys.modules[models.__name__] = models

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402

from asyncrl.env.protocol import ToolCall  # noqa: E402
from asyncrl.env.tool_schemas import plain_schema  # noqa: E402
from asyncrl.envs.benchmarks.call_checks import same_calls  # noqa: E402
from asyncrl.textfile import json_records  # noqa: E402

CATEGORIES = (
    "simple_python", "multiple", "parallel", "parallel_multiple",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
)  # fmt: skip
DATA = Path(bfcl_eval.__file__).parent / "data"
Calls = list[dict[str, dict[str, Any]]]


def theirs(functions: list[Any], calls: Calls, answers: list[Any], category: str) -> bool | str:
    """Return BFCL's verdict, or what its checker raises."""
    try:
        found = ast_checker(functions, calls, answers, Language.PYTHON, category, "none")
    except Exception as error:
        return type(error).__name__
    return bool(found["valid"])


def ours(functions: list[Any], calls: Calls, answers: list[Any]) -> bool:
    tools = [{"type": "function", "function": plain_schema(one)} for one in functions]
    made = [ToolCall("", name, arguments) for call in calls for name, arguments in call.items()]
    return same_calls(made, answers, tools)


def right_calls(answers: list[dict[str, dict[str, list[Any]]]]) -> Calls:
    """Return the calls with the first value of each argument that may not be left out."""
    return [
        {
            name: {argument: _first(values) for argument, values in arguments.items() if _first(values) != ""}
            for name, arguments in answer.items()
        }
        for answer in answers
    ]


def _first(values: list[Any]) -> Any:
    value = next((one for one in values if one != ""), "")
    if isinstance(value, dict):
        return {key: _first(one) for key, one in value.items() if isinstance(one, list)}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_first([one]) for one in value]
    return copy.deepcopy(value)


def others(value: Any) -> list[Any]:
    """Return other values in place of one."""
    common: list[Any] = ["", None, [], {}, 0, True]
    if isinstance(value, bool):
        return [not value, int(value), str(value), *common]
    if isinstance(value, int | float):
        return [value + 1, float(value), str(value), -value, int(value), [value], bool(value), *common]
    if isinstance(value, str):
        changed = [
            value.upper(),
            f" {value} ",
            value.replace(" ", "_"),
            value + ".",
            value + "x",
            value.replace("'", '"'),
        ]
        return [*changed, value.replace(",", ""), [value], *common]
    if isinstance(value, list):
        inner = [[*value[:-1], one] for one in others(value[-1])] if value else []
        return [value[::-1], value[:-1], [*value, *value[-1:]], str(value), *inner, *common]
    if isinstance(value, dict):
        changed = [
            {**value, "another": 1},
            *({k: v for k, v in value.items() if k != name} for name in value),
        ]
        return [
            *changed,
            *({**value, name: one} for name in value for one in others(value[name])),
            [value],
            *common,
        ]
    return common


def variations(calls: Calls) -> Iterator[Calls]:
    yield calls
    yield []
    yield calls[:-1]
    yield calls[::-1]
    yield [*calls, calls[-1]]
    for number, call in enumerate(calls):
        ((name, arguments),) = call.items()
        yield [*calls[:number], {name + "x": arguments}, *calls[number + 1 :]]
        for changed in _changed(arguments):
            yield [*calls[:number], {name: changed}, *calls[number + 1 :]]


def _changed(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**arguments, "another": 1}
    for name, value in arguments.items():
        yield {key: one for key, one in arguments.items() if key != name}
        for other in others(value):
            yield {**arguments, name: other}


def records(category: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """Return functions and answers of each question."""
    answers = {}
    for _, record in json_records(DATA / "possible_answer" / f"BFCL_v4_{category}.json"):
        answers[record["id"]] = record["ground_truth"]
    for _, record in json_records(DATA / f"BFCL_v4_{category}.json"):
        yield record["function"], answers[record["id"]]


def judge_table(file: Path) -> int:
    """Print what BFCL's checker says otherwise than a table of right and wrong calls; return whether it does."""
    differ = 0
    for group in json.loads(file.read_text()):
        for judged in ("right", "wrong"):
            for calls in group[judged]:
                verdict = theirs(group["functions"], calls, group["answers"], group["category"])
                if verdict is not (judged == "right"):
                    differ += 1
                    print(json.dumps({"table": judged, "theirs": verdict, "calls": calls}))
    return int(bool(differ))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table:
        return judge_table(args.table)
    counts: collections.Counter[str] = collections.Counter()
    for category in CATEGORIES:
        for functions, answers in records(category):
            for calls in variations(right_calls(answers)):
                verdict, own = theirs(functions, calls, answers, category), ours(functions, calls, answers)
                if isinstance(verdict, str):
                    counts[f"{category}: BFCL's checker raises {verdict}, ours says {own}"] += 1
                    continue
                counts[
                    f"{category}: {'right' if verdict else 'wrong'} for both" if own == verdict else "differ"
                ] += 1
                if own != verdict and counts["differ"] <= 40:
                    print(json.dumps({"theirs": verdict, "ours": own, "calls": calls, "answers": answers}))
    for name, count in sorted(counts.items()):
        print(f"{count:8d}  {name}")
    return int(bool(counts["differ"]))


if __name__ == "__main__":
    raise SystemExit(main())
