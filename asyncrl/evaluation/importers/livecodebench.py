"""Programs to write, in the fields of LiveCodeBench: tests on stdin and stdout, or of a method of `Solution`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asyncrl.evaluation.importers.records import Imported, text
from asyncrl.textfile import parse_lines

ENV = "asyncrl.envs.benchmarks.program:Program"
EXPECTED = (
    "question_content, and public_test_cases and private_test_cases, lists of {input, output, testtype}; for tests of "
    "type functional also starter_code and metadata with func_name"
)


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    tests = [*_tests(record, "public_test_cases"), *_tests(record, "private_test_cases")]
    if not tests:
        raise ValueError("there are no test cases")
    statement, starter = text(record, "question_content"), record.get("starter_code") or ""
    if starter:
        statement += f"\n\nStart with this code:\n```python\n{starter}\n```"
    else:
        statement += "\n\nRead from stdin and print the answer."
    data: dict[str, Any] = {"statement": statement}
    if all(one["testtype"] == "stdin" for one in tests):
        data["tests"] = [[one["input"], one["output"]] for one in tests]
    else:
        name = _parsed(record["metadata"])["func_name"]
        data["check"] = "\n".join(_assertion(name, one) for one in tests)
        data["prefix"] = "from typing import *\n"
    if isinstance(record.get("platform"), str):
        data["tags"] = [record["platform"]]
    return Imported(str(record.get("question_id", "")), data)


def _tests(record: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    try:
        found = _parsed(record.get(name) or [])
    except ValueError:
        # The benchmark's own form is a compressed pickle, which could run code.
        raise ValueError(f"{name}: must be a JSON list, got something compressed; decode it first") from None
    for one in found:
        if one.get("testtype", "stdin") not in ("stdin", "functional"):
            raise ValueError(f"{name}: testtype must be stdin or functional, got {one['testtype']!r}")
    return [{"testtype": "stdin"} | {key: str(value) for key, value in one.items()} for one in found]


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _assertion(name: str, test: Mapping[str, str]) -> str:
    arguments = parse_lines(test["input"])
    return f"assert Solution().{name}(*{arguments!r}) == {json.loads(test['output'])!r}"
