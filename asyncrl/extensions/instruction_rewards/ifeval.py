"""The reward "ifeval": 1 where an answer follows all instructions of its row, by lm-eval's checks."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.helper_process import HelperProcess, few_variables
from asyncrl.rewards.protocol import Completion, NotJudged, Score
from asyncrl.rewards.reasoning import after_reasoning
from asyncrl.rewards.rows import describe_row

CHECKS = Path(__file__).with_name("ifeval_checks.py")
DEADLINE_S = 20.0
START_S = 180.0
"""lm-eval imports a lot."""
COLUMNS = ("prompt", "instruction_id_list", "kwargs")


class InstructionFollowing:
    """Reward 1 where all instructions are followed strictly. Components: the shares, strictly and loosely."""

    name = "ifeval"

    def __init__(self, python: str = "") -> None:
        self.checks = checks_of(python)

    async def score(self, completions: Sequence[Completion]) -> list[Score]:
        """See `Reward.score`."""
        return list(await asyncio.gather(*(self._score(one) for one in completions)))

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """See `Reward.check_row`."""
        missing = [name for name in COLUMNS if name not in row]
        return f"no column {missing[0]!r}" if missing else None

    async def _score(self, completion: Completion) -> Score:
        row = completion.row
        if (why := self.check_row(row)) is not None:
            raise NotJudged(f"reward 'ifeval', {describe_row(row)}: {why}")
        kwargs = [
            {key: value for key, value in (one or {}).items() if value is not None} for one in row["kwargs"]
        ]
        prompt = row["prompt"] if isinstance(row["prompt"], str) else str(row["prompt"][-1]["content"])
        request = {
            "prompt": prompt,
            "ids": list(row["instruction_id_list"]),
            "kwargs": kwargs,
            "response": after_reasoning(completion.text).lstrip("\n"),
        }
        reply = await asyncio.to_thread(self.checks.ask, request, DEADLINE_S)
        if not reply:
            raise NotJudged(f"reward 'ifeval', {describe_row(row)}: no answer within {DEADLINE_S:g} s")
        found: dict[str, list[bool]] = json.loads(reply)
        strict, loose = found["strict"], found["loose"]
        success = all(strict)
        components = {
            "ifeval": float(success),
            "instructions_strict": sum(strict) / len(strict),
            "instructions_loose": sum(loose) / len(loose),
        }
        return Score(float(success), components, None, success)


@functools.cache
def checks_of(python: str) -> HelperProcess:
    """Return the process with lm-eval's checks in this interpreter, shared by all episodes."""
    missing = (
        f"lm-eval's checks of IFEval did not start in {python or sys.executable}: install lm-eval, langdetect, "
        "immutabledict and nltk there, or into an environment of its own, whose interpreter `python` then names "
        "(docs/evaluation.md)"
    )
    return HelperProcess(
        [python or sys.executable, "-I", str(CHECKS)], missing, few_variables("NLTK_DATA"), START_S
    )
