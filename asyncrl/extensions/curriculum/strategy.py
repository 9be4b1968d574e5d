"""Examples in the prompt: transcripts of solved tasks before an episode's own task.

They are context as the rest of the prompt is: the episode is sampled with them and trained with them, so its
log-probabilities are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from asyncrl.data.transcript import read_transcript
from asyncrl.extensions.curriculum.examples import examples_of
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.types import SEEDED, Lease, Message

BEFORE = "This is how similar tasks were solved."
AFTER = "Now your own task:"


class Examples:
    """A `GroupStrategy` that shows the episodes of a group the examples of its lease."""

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        examples = examples_of(lease)
        if not examples:
            return await play(requests)
        opening = partial(with_examples, examples=examples)
        noted = {SEEDED: len(examples)}
        return await play([replace(one, opening=opening, info={**one.info, **noted}) for one in requests])


def with_examples(messages: Sequence[Message], examples: Sequence[str]) -> list[Message]:
    """Return an episode's opening messages with the examples before the first user message's content.

    examples: transcripts (`asyncrl.data.transcript`). Without any, or without a user message, nothing changes.
    """
    shown = list(messages)
    place = next((i for i, message in enumerate(shown) if message["role"] == "user"), None)
    if not examples or place is None:
        return shown
    examples_shown = [f"Example {number}:\n{_shown(text)}" for number, text in enumerate(examples, 1)]
    prefix = "\n\n".join([BEFORE, *examples_shown, AFTER]) + "\n\n"
    content = shown[place]["content"]
    whole = prefix + content if isinstance(content, str) else [{"type": "text", "text": prefix}, *content]
    shown[place] = {**shown[place], "content": whole}
    return shown


def _shown(transcript: str) -> str:
    """Return a transcript as lines of text, without system messages."""
    lines = []
    # The rewards of turns are not shown; there are no more turns than messages.
    rewards = [0.0] * transcript.count('"role"')
    for message in read_transcript(transcript, rewards) or ():
        if message["role"] == "system":
            continue
        calls = [f"{call['name']} {call['arguments']}" for call in message["tool_calls"] or ()]
        parts = [part for part in (message["content"], *calls) if part]
        lines.append(f"[{message['role']}] " + "\n".join(parts))
    return "\n".join(lines)


def configured(parts: WorkerParts) -> Examples:
    """Return what shows examples; which groups have any, the curriculum decides."""
    return Examples()
