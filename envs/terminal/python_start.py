"""Given to every Python that a task's tests start, as its sitecustomize.

PYTHONSAFEPATH keeps the current folder and a script's own off the front of the path, where the agent's files would
stand in for the standard library. Here they come last, so that programs still find their own modules.
"""

import os
import sys


def left_out() -> str:
    first = sys.argv[0] if sys.argv else ""
    if first in ("", "-c", "-m", "-"):
        return os.getcwd()
    return first if os.path.isdir(first) else os.path.dirname(os.path.realpath(first))


if getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
    sys.path.append(left_out())
