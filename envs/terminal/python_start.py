"""Given to every Python that a task's tests start, as its sitecustomize.

PYTHONSAFEPATH keeps the current folder and a script's own off the front of the path, where the agent's files would
stand in for the standard library. Here they come last, so that programs still find their own modules. A module that
is run on the tests (`python -m pytest /tests`) does without the current folder: were it missing, the agent's would run.
"""

import os
import sys


def left_out() -> list[str]:
    first = sys.argv[0] if sys.argv else ""
    if first in ("", "-c", "-"):
        return [os.getcwd()]
    if first == "-m":
        judges = (
            os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
            os.environ.get("HOME") or "/tests",
        )
        return [] if any(place in argument for argument in sys.argv for place in judges) else [os.getcwd()]
    return [first if os.path.isdir(first) else os.path.dirname(os.path.realpath(first))]


if getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
    sys.path += left_out()
