"""A reward model that reads whole conversations and gives a number for each output of its head.

A conversation passes through the chat template of the model's tokenizer. In what it says, the tokens by which the
template and the tokenizer mean something else are broken, so that no text of a policy begins a message. A conversation
that is longer than the model reads has its longest messages cut in their middle, with a note; the caller is told.

Conversations are read in batches of about one length. Padding stands on the right, by a token that none of the batch
has where the model names none itself, so that a score does not depend on what else is in the batch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from asyncrl.chat.load_tokenizer import load_tokenizer
from asyncrl.errors import ConfigError
from asyncrl.extensions.judge.reward_model import RewardModel
from asyncrl.extensions.judge.transcript import level, unspecial
from asyncrl.types import Message

BATCH_TOKENS = 16384
"""Tokens of a batch at most, padding included; a longer conversation is a batch of its own."""
CUTS = 8
"""Times that messages are made shorter before the beginning is left out."""
ROOM = 0.95
"""Share of the context that is aimed at: what is cut does not have as many tokens a character as the rest."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a model says of one conversation."""

    outputs: tuple[float, ...]
    """One number for each output of the head."""
    tokens: int
    """Tokens that it has read."""
    whole_tokens: int
    """Tokens that the conversation has."""

    @property
    def cut(self) -> bool:
        return self.tokens < self.whole_tokens


class ScoringModel:
    """Loads a folder and scores conversations. One thread at a time may use it."""

    def __init__(self, described: RewardModel, device: str) -> None:
        """Raises `ConfigError` for weights that are not all there."""
        from transformers import AutoModelForSequenceClassification

        self.described = described
        self.tokenizer = load_tokenizer(str(described.folder))
        # What is too long is cut below, and told by the caller.
        self.tokenizer.model_max_length = sys.maxsize
        try:
            model, said = AutoModelForSequenceClassification.from_pretrained(
                described.folder,
                dtype="auto" if device == "cuda" else torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{described.folder}: cannot be loaded: {str(error)[:500]}") from error
        if missing := sorted(said["missing_keys"]):
            raise ConfigError(
                f"{described.folder}: the weights have no {missing[0]}, and would be random there"
            )
        self.model = model.to(device).eval().requires_grad_(False)
        self.pad: int | None = model.config.get_text_config().pad_token_id
        """The model's own padding; it reads no number of a text that ends with it as any other token does."""
        special = {str(one) for one in self.tokenizer.added_tokens_decoder.values() if one.special}
        self.special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")

    def score(self, conversations: Sequence[Sequence[Message]]) -> list[Scored | str]:
        """Return what the model says of each; a text where the template refuses one, which says why."""
        found: list[Scored | str] = []
        encoded: dict[int, tuple[list[int], int]] = {}
        for place, messages in enumerate(conversations):
            try:
                encoded[place] = self.encode(messages)
                found.append("")
            except Exception as error:
                # Templates raise whatever they like, and what they are given is a policy's.
                found.append(
                    f"the chat template refuses the conversation: {type(error).__name__}: {error}"[:500]
                )
        for batch in batches({place: len(ids) for place, (ids, _) in encoded.items()}):
            outputs = self._outputs([encoded[place][0] for place in batch])
            for place, numbers in zip(batch, outputs, strict=True):
                ids, whole = encoded[place]
                found[place] = Scored(tuple(numbers), len(ids), whole)
        return found

    def encode(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """Return the tokens of a conversation that are read, and how many it has."""
        most = self.described.context_tokens
        plain = [self._plain(message) for message in messages]
        ids = self._ids(plain)
        whole, left = len(ids), sum(len(text) for text in _contents(plain))
        for _ in range(CUTS):
            if len(ids) <= most:
                return ids, whole
            left = int(left * ROOM * most / len(ids))
            ids = self._ids(_shortened(plain, left))
        # Many messages, each as short as it may be: their end is what is judged.
        return ids[-most:], whole

    def _ids(self, messages: list[Message]) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _plain(self, value: Any) -> Any:
        """Return a part of a message without tokens that mean something to the template or the tokenizer."""
        if isinstance(value, str):
            return self.special.sub(lambda found: f"{found.group()[0]} {found.group()[1:]}", unspecial(value))
        if isinstance(value, dict):
            return {key: self._plain(one) for key, one in value.items()}
        return [self._plain(one) for one in value] if isinstance(value, list | tuple) else value

    @torch.inference_mode()
    def _outputs(self, rows: Sequence[list[int]]) -> list[list[float]]:
        """Return the outputs for each row of tokens."""
        pad = self.pad if self.pad is not None else _unused(rows)
        self.model.config.get_text_config().pad_token_id = pad
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=self.model.device)
        mask = torch.tensor(
            [[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self.model.device
        )
        logits = self.model(input_ids=ids, attention_mask=mask).logits
        outputs: list[list[float]] = logits.float().cpu().tolist()
        return outputs


def batches(lengths: dict[int, int]) -> list[list[int]]:
    """Return places in batches of about one length. lengths: tokens by place."""
    found: list[list[int]] = []
    for place in sorted(lengths, key=lambda one: lengths[one]):
        # Sorted, so that the new one is the longest.
        if found and lengths[place] * (len(found[-1]) + 1) <= BATCH_TOKENS:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _unused(rows: Sequence[list[int]]) -> int:
    """Return the smallest token that stands in no row: it cannot be taken for a part of one."""
    used = {one for row in rows for one in row}
    return next(one for one in range(len(used) + 1) if one not in used)


def _contents(messages: Sequence[Message]) -> list[str]:
    return [one["content"] for one in messages if isinstance(one.get("content"), str)]


def _shortened(messages: Sequence[Message], characters: int) -> list[Message]:
    limit = level([len(text) for text in _contents(messages)], characters)
    return [
        {**one, "content": _cut(one["content"], limit)} if isinstance(one.get("content"), str) else one
        for one in messages
    ]


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters are left out here]\n{text[-half:]}"
