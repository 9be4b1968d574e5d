"""What the folder of a reward model holds, by its files alone: labels, context, and whether it can be served.

It is a model of transformers for sequence classification, in safetensors and without code of its own, whose tokenizer
has a chat template. Torch-free.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.tensorfile import tensors_in

HEAD = "ForSequenceClassification"
"""The end of the names of architectures with a head that gives numbers for a whole text."""
HEADS = ("score.", "classifier.", "classification_head.")
"""The beginnings of the names of a head's tensors."""
TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A folder that can be served."""

    folder: Path
    labels: tuple[str, ...]
    """Of the head's outputs, in their order."""
    context_tokens: int
    """Tokens that it reads at most."""


def read_reward_model(key: str, folder: str) -> RewardModel:
    """Return what a folder holds. key: the setting that names it. Raises `ConfigError` saying what is allowed."""
    path = Path(folder)
    config = _json(key, path / "config.json")
    kinds = config.get("architectures") or []
    if not any(str(kind).endswith(HEAD) for kind in kinds):
        raise ConfigError(
            f"{key}: {folder} has no classification head: its architectures are {kinds}; allowed are those that end "
            f"with {HEAD}"
        )
    if "auto_map" in config:
        raise ConfigError(f"{key}: {folder} comes with code of its own (auto_map), which is not run")
    tokenizer = _json(key, path / "tokenizer_config.json")
    if not tokenizer.get("chat_template") and not any((path / name).is_file() for name in TEMPLATES):
        raise ConfigError(
            f"{key}: {folder} has no chat template, so nothing says how it reads a conversation; give it one as "
            f"{TEMPLATES[0]}"
        )
    labels = _labels(config)
    _check_head(key, path, len(labels))
    return RewardModel(path, labels, _context(config, tokenizer))


def _json(key: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{key}: must be the folder of a model of transformers for sequence classification; {path} cannot be read "
            f"({error})"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{key}: {path} must hold an object")
    return found


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the labels that transformers gives the outputs."""
    named = config.get("id2label") or {}
    if named:
        return tuple(str(named[place]) for place in sorted(named, key=int))
    # Two is what transformers takes where nothing is said.
    return tuple(f"LABEL_{place}" for place in range(int(config.get("num_labels", 2))))


def _check_head(key: str, folder: Path, outputs: int) -> None:
    """Refuse weights in another form, and those without a head of so many outputs."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = [path.name for path in sorted(folder.glob("*.bin"))]
        raise ConfigError(
            f"{key}: {folder} has no weights in safetensors{f'; {others} are not read' * bool(others)}"
        )
    shapes = {name: shape for file in files for name, shape in _shapes(key, file)}
    head = {name: shape for name, shape in shapes.items() if name.startswith(HEADS)}
    if not head:
        raise ConfigError(
            f"{key}: the weights of {folder} have no head: no tensor is named {' or '.join(f'{one}*' for one in HEADS)}"
        )
    if not any(shape and shape[0] == outputs for shape in head.values()):
        raise ConfigError(
            f"{key}: {folder} names {outputs} labels, and its head has tensors of {sorted(head.items())}"
        )


def _shapes(key: str, file: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        tensors, _ = tensors_in(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {file} cannot be read: {error}") from error
    for name, one in tensors.items():
        yield name, one["shape"]


def _context(config: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """Return the tokens that both the model and its tokenizer allow; tokenizers that know none give a huge number."""
    known = [config.get("max_position_embeddings"), tokenizer.get("model_max_length")]
    return min(
        (int(one) for one in known if isinstance(one, int | float) and 0 < one < 1e9), default=sys.maxsize
    )
