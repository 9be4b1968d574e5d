"""Functions to complete, in the fields of HumanEval: `prompt`, `test` with a `check(candidate)`, `entry_point`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.evaluation.importers.records import Imported, text

ENV = "asyncrl.envs.benchmarks.program:Program"
EXPECTED = "prompt (the head of a function), test (code that defines check(candidate)) and entry_point"


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    prompt, entry = text(record, "prompt"), text(record, "entry_point")
    before, defined, _ = prompt.partition(f"def {entry}(")
    if not defined:
        raise ValueError(f"the prompt does not define {entry!r}")
    test = text(record, "test")
    if "def check(" not in test:
        raise ValueError("test: does not define check(candidate)")
    statement = (
        f"Complete this function. Answer with the whole function.\n\n```python\n{prompt.rstrip()}\n```"
    )
    data = {"statement": statement, "prefix": before, "check": f"{test}\ncheck({entry})\n"}
    return Imported(str(record.get("task_id", "")), data)
