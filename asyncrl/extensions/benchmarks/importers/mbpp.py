"""Functions to write, in the fields of MBPP: `text` or `prompt`, and `test_list` of assertions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.extensions.benchmarks.importers.records import Imported, text
from asyncrl.extensions.program_rewards.published import program_tests

ENV = "asyncrl.envs.benchmarks.program:Program"
EXPECTED = (
    "text or prompt, and test_list, a list of assertions; test_setup_code or test_imports if they need any"
)


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    tests = program_tests({"test_list": record["test_list"], **record})
    statement = f"{text(record, 'text', 'prompt')}\n\nIt must pass this test:\n```python\n{record['test_list'][0]}\n```"
    return Imported(str(record.get("task_id", "")), {"statement": statement, **tests})
