"""Programs to write, in the fields of LiveCodeBench: tests on stdin and stdout, or of a method of `Solution`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.extensions.benchmarks.importers.records import Imported, text
from asyncrl.extensions.program_rewards.published import program_tests

ENV = "asyncrl.envs.benchmarks.program:Program"
EXPECTED = (
    "question_content, and public_test_cases and private_test_cases, lists of {input, output, testtype}; for tests of "
    "type functional also starter_code and metadata with func_name"
)


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    cases = {name: record.get(name) or [] for name in ("public_test_cases", "private_test_cases")}
    tests = program_tests({**cases, "metadata": record.get("metadata")})
    statement, starter = text(record, "question_content"), record.get("starter_code") or ""
    if starter:
        statement += f"\n\nStart with this code:\n```python\n{starter}\n```"
    else:
        statement += "\n\nRead from stdin and print the answer."
    data: dict[str, Any] = {"statement": statement, **tests}
    if isinstance(record.get("platform"), str):
        data["tags"] = [record["platform"]]
    return Imported(str(record.get("question_id", "")), data)
