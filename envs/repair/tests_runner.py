"""Runs the repository's own tests inside the sandbox and prints one short line for each that fails."""

from __future__ import annotations

import os
import sys
import unittest


def main() -> None:
    sys.path.insert(0, os.getcwd())
    result = unittest.TestResult()
    unittest.defaultTestLoader.discover("tests").run(result)
    for test, trace in result.failures + result.errors:
        lines = [line.strip() for line in trace.strip().splitlines()]
        where = next((line for line in lines if line.startswith("self.assert")), "")
        error_line = next((line for line in lines if "Error" in line.partition(":")[0]), lines[-1])
        print(f"FAILED {test.id().rpartition('.')[2]}: {where} {error_line}"[:300])
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} of {result.testsRun} passed")


if __name__ == "__main__":
    main()
