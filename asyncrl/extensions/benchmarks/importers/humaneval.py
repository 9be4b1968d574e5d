"""Functions to complete, in the fields of HumanEval: `prompt`, `test` with a `check(candidate)`, `entry_point`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.extensions.benchmarks.importers.records import Imported
from asyncrl.extensions.program_rewards.published import program_tests

ENV = "asyncrl.envs.benchmarks.program:Program"
EXPECTED = "prompt (the head of a function), test (code that defines check(candidate)) and entry_point"


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    tests = program_tests({name: record[name] for name in ("prompt", "entry_point", "test")})
    prompt = str(record["prompt"]).rstrip()
    statement = f"Complete this function. Answer with the whole function.\n\n```python\n{prompt}\n```"
    return Imported(str(record.get("task_id", "")), {"statement": statement, **tests})
