"""The first samples of a run, shown to people: a wrong prompt, reward or extraction is seen in the first minute."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.console import shown
from asyncrl.data.transcript import read_transcript
from asyncrl.errors import InputError
from asyncrl.rows.template import ANSWER
from asyncrl.types import EXTRACTED, Group, Task, Trajectory

SHOWN = 3
"""Samples at the start of a run."""
SHOWN_CHARACTERS = 600
"""The characters that are shown of a text; of a longer one, its beginning and end."""
INDENT = " " * 16


class FirstSamples:
    """Shows the first samples of those that it sees."""

    def __init__(
        self, say: Callable[[str], None], number: int = SHOWN, characters: int = SHOWN_CHARACTERS
    ) -> None:
        """say: prints lines. number: how many samples. characters: the most of a text; 0 shows all."""
        self._say, self._number, self._characters = say, number, characters
        self._seen = 0

    def see(self, group: Group) -> None:
        """Show the samples of a group, as many as are left to show."""
        for trajectory in group.trajectories[: self._number - self._seen]:
            self._seen += 1
            self._say(sample_text(group.task, trajectory, f"sample {self._seen}", self._characters))


def sample_text(task: Task, trajectory: Trajectory, title: str, characters: int = SHOWN_CHARACTERS) -> str:
    """Return a sample as lines: its prompt, what was answered, what was taken as the answer, and what it earned."""
    messages = read_transcript(trajectory.conversation, [turn.reward for turn in trajectory.turns]) or []
    return _text(
        title,
        messages,
        {
            "task": trajectory.task_id,
            "reward": trajectory.reward,
            "components": trajectory.components,
            "success": trajectory.success,
            "error": trajectory.error,
            "status": str(trajectory.status),
            "extracted": trajectory.info.get(EXTRACTED),
            "right": task.data.get(ANSWER),
        },
        characters,
    )


def trained_samples(folder: Path, number: int = SHOWN) -> Iterator[str]:
    """Yield the first samples that a run has trained on, as lines; none where its files cannot be read."""
    import pyarrow.parquet

    for file in sorted((folder / "trajectories").glob("step-*.parquet"))[:1]:
        columns = [
            "task",
            "reward",
            "components",
            "success",
            "error",
            "status",
            "messages",
            "info",
            "task_json",
        ]
        try:
            rows = next(pyarrow.parquet.ParquetFile(file).iter_batches(number, columns=columns)).to_pylist()
        except (OSError, ValueError, StopIteration):
            return
        for count, row in enumerate(rows, 1):
            data = json.loads(row["task_json"] or "{}").get("data", {})
            found = {
                **row,
                "components": {one["name"]: one["value"] for one in row["components"] or ()},
                "extracted": json.loads(row["info"] or "{}").get(EXTRACTED),
                "right": data.get(ANSWER),
            }
            yield _text(f"sample {count}", row["messages"] or [], found, SHOWN_CHARACTERS)


def _text(
    title: str, messages: Sequence[Mapping[str, Any]], found: Mapping[str, Any], characters: int
) -> str:
    last = max(
        (n for n, message in enumerate(messages) if message["role"] == "assistant"), default=len(messages)
    )
    reward = f"{found['reward']:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in found["components"].items())
    if parts and len(found["components"]) > 1:
        reward += f" ({parts})"
    fields: list[tuple[str, Any]] = [(str(message["role"]), _content(message)) for message in messages[:last]]
    fields += [("answer", _content(message)) for message in messages[last:][:1]]
    fields += [("extracted", found["extracted"]), ("right answer", found["right"])]
    if found["success"] is not None:
        reward += ", success" if found["success"] else ", no success"
    if found["error"] or found["status"] == "failed":
        reward += f" [{found['status']}: {found['error']}]"
    fields.append(("reward", reward))
    lines = [f"{title}: {shown(str(found['task']))}"]
    for name, value in fields:
        if value is not None:
            lines.append(f"  {name + ':':{len(INDENT) - 2}s}{_cut(value, characters)}")
    return "\n".join(lines)


def _content(message: Mapping[str, Any]) -> str:
    """Return what a message says, with its calls."""
    calls = [f"{call['name']}({call['arguments']})" for call in message.get("tool_calls") or ()]
    texts = [message.get("reasoning_content") or "", message.get("content") or "", *calls]
    return "\n".join(text for text in texts if text)


def _cut(value: Any, characters: int) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if characters and len(text) > characters:
        half = characters // 2
        text = f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
    return shown(text).replace("\n", f"\n{INDENT}")


def chosen_rows(tasks: Iterator[Task], number: int) -> list[Task]:
    """Return the first `number` tasks, with ids that tell them apart. Raises `InputError` where there is none."""
    found = []
    for count, task in zip(range(number), tasks, strict=False):
        found.append(Task(f"{count}-{task.id}", task.env, task.seed, task.split, task.data))
    if not found:
        raise InputError("there is no row to play")
    return found
