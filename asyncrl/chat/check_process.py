"""Starts the check of a model's chat template and formats (`check_parsers`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.process_start import run_process

CHECK_TIMEOUT_S = 300.0
"""How long importing a large library on a slow disk and loading a tokenizer may take."""


def check_chat(asked: Mapping[str, Any]) -> list[str]:
    """Check, in a process of its own, that a model's chat template shows what the tasks need, and that its tokenizer
    has the tokens that the formats of its turns need.

    asked: what `asyncrl.chat.check_parsers` takes. Returns what is worth knowing, a line each. Raises `ConfigError`
    naming what is missing.
    """
    command = [sys.executable, "-m", "asyncrl.chat.check_parsers", json.dumps(asked)]
    try:
        done = run_process(command, os.environ, CHECK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"model.tool_format: the check of {asked['tool_format']!r} took more than {CHECK_TIMEOUT_S:g} s"
        ) from None
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise ConfigError(
            lines[-1] if lines else f"model.tool_format: {asked['tool_format']!r} cannot be checked"
        )
    return [line for line in done.stdout.splitlines() if line.startswith("model.")]
