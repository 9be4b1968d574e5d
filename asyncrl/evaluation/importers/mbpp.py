"""Functions to write, in the fields of MBPP: `text` or `prompt`, and `test_list` of assertions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.evaluation.importers.records import Imported, text

ENV = "asyncrl.envs.benchmarks.program:Program"
EXPECTED = (
    "text or prompt, and test_list, a list of assertions; test_setup_code or test_imports if they need any"
)


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    tests, imports = record["test_list"], record.get("test_imports") or []
    for name, value in (("test_list", tests), ("test_imports", imports)):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise TypeError(f"{name}: must be a list of texts, got {value!r:.80}")
    if not tests:
        raise ValueError("test_list: is empty")
    setup = record.get("test_setup_code") or ""
    statement = f"{text(record, 'text', 'prompt')}\n\nIt must pass this test:\n```python\n{tests[0]}\n```"
    check = "\n".join([*imports, setup, *tests])
    return Imported(str(record.get("task_id", "")), {"statement": statement, "check": check})
