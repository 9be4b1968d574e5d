"""Runs the test functions of one file without pytest. Given to an isolated interpreter inside the sandbox.

Its only argument is the file; its stdin a token that marks its verdict, read before anything else runs.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import runpy
import sys
import traceback

PR_SET_DUMPABLE = 4


def main() -> None:
    token = sys.stdin.read()
    # What the tests start runs under the same user id; it must not read the token from this process.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        names = runpy.run_path(sys.argv[1])
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        say(token, {"tests": 0, "passed": 0})
        return
    tests = [value for name, value in names.items() if name.startswith("test") and inspect.isfunction(value)]
    for name, value in names.items():
        if name.startswith("Test") and inspect.isclass(value):
            tests += [getattr(value(), method) for method in dir(value) if method.startswith("test")]
    passed = 0
    for test in tests:
        try:
            test()
            passed += 1
        except Exception:
            traceback.print_exc(limit=-2)
    say(token, {"tests": len(tests), "passed": passed})


def say(token: str, counts: dict[str, int]) -> None:
    print(f"\n{token}{json.dumps(counts)}", flush=True)


if __name__ == "__main__":
    main()
