"""Recipes whose sums the tests of the planner know, whatever the packaged ones say."""

from pathlib import Path

SMALL = str(Path(__file__).with_name("qwen3_0_6b.toml"))
"""Qwen3-0.6B: engine and trainer share one GPU."""
BY_TURNS = str(Path(__file__).with_name("qwen3_8b_by_turns.toml"))
"""All weights of Qwen3-8B on eight GPUs of 80 GiB, which trainer and engines use by turns."""
