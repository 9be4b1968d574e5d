"""The sub-commands of `asyncrl`, one module each: `add(subparsers)` and `run(args) -> int`."""
