"""`python -m asyncrl` is the command `asyncrl`."""

import os
import sys

if sys.path and not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    # `python -m` searches the current folder first, where a user's `token.py` would be the standard library's.
    sys.path.append(sys.path.pop(0))

from asyncrl.cli import main

raise SystemExit(main())
