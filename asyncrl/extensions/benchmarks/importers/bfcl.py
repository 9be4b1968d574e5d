"""Function calls to make, in the fields of BFCL: `question`, `function` and, in one record, `ground_truth`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.env.tool_schemas import PYTHON_TYPES, TYPES, plain_schema
from asyncrl.extensions.benchmarks.importers.records import Imported

ENV = "asyncrl.envs.benchmarks.calls:Calls"
EXPECTED = (
    "question (a list of messages, or a list with one), function (schemas) and ground_truth "
    "([{name: {argument: [values]}}], empty where no call is right)"
)


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    question, functions, answers = record["question"], record["function"], record["ground_truth"]
    if isinstance(question, list) and question and isinstance(question[0], list):
        if len(question) > 1:
            raise ValueError(f"question: has {len(question)} turns; the format bfcl_multi_turn judges those")
        question = question[0]
    if not isinstance(question, list) or not all(isinstance(one, dict) and "role" in one for one in question):
        raise TypeError(f"question: must be a list of messages, got {question!r:.80}")
    functions = functions if isinstance(functions, list) else [functions]
    for answer in answers:
        for name, arguments in answer.items():
            if not isinstance(arguments, dict) or not all(isinstance(v, list) for v in arguments.values()):
                raise TypeError(f"ground_truth: {name}: must map arguments to lists, got {arguments!r:.80}")
            if name not in [one["name"] for one in functions]:
                raise ValueError(f"ground_truth: there is no function {name!r}")
    for function in functions:
        _check_types(function)
    tools = [{"type": "function", "function": plain_schema(one)} for one in functions]
    return Imported(str(record.get("id", "")), {"messages": question, "tools": tools, "answers": answers})


def _check_types(function: Mapping[str, Any]) -> None:
    """Refuse functions of BFCL's Java and JavaScript parts, whose arguments are code that its own converters read."""
    properties = (function.get("parameters") or {}).get("properties") or {}
    for name, schema in properties.items():
        kind = schema.get("type")
        if not isinstance(kind, str) or PYTHON_TYPES.get(kind, kind) not in TYPES:
            raise ValueError(
                f"function: {function['name']}: {name} has the type {kind!r}; types of Java and JavaScript are not "
                f"judged here; allowed: {', '.join((*TYPES, *PYTHON_TYPES))}"
            )
