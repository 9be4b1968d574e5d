"""The sub-commands of `asyncrl`, one module each: `add(subparsers)` and `run(args) -> int`."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What `ArgumentParser.add_subparsers` returns; argparse has no public name for it."""
