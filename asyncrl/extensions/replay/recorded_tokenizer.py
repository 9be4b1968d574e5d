"""Whether token ids of a recorded run mean what they mean to this run's model. Loads no transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.run.checkpoints import complete_checkpoints

FILE = "tokenizer.json"


def check_tokenizer(key: str, run: Path, model: str) -> None:
    """Refuse the tokens of a run whose checkpoints have another tokenizer than the model.

    Nothing is said of a run without checkpoints, and of a model that is yet to be made or downloaded. Raises
    `ConfigError`.
    """
    saved = complete_checkpoints(run / "checkpoints")
    theirs = token_ids(saved[0][1] / FILE) if saved else None
    ours = token_ids(_file(model))
    if theirs is None or ours is None or theirs == ours:
        return
    differing = next(iter(sorted(theirs.items() ^ ours.items())))
    raise ConfigError(
        f"{key}: {run}: was sampled by a model with another tokenizer than {model}: only one of them has token "
        f"{differing[0]!r} as {differing[1]}"
    )


def token_ids(file: Path | None) -> dict[str, int] | None:
    """Return the id of each token of a `tokenizer.json`; None where there is none, or it is of an unknown form."""
    if file is None or not file.is_file():
        return None
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        found = _ids(described["model"]["vocab"])
        return found | {one["content"]: int(one["id"]) for one in described.get("added_tokens", ())}
    except (ValueError, KeyError, TypeError):
        return None


def _ids(vocabulary: Any) -> dict[str, int]:
    """Return the ids of a map from tokens, or of a list of tokens with their scores."""
    if isinstance(vocabulary, dict):
        return {token: int(number) for token, number in vocabulary.items()}
    return {token: number for number, (token, _) in enumerate(vocabulary)}


def _file(model: str) -> Path | None:
    """Return the tokenizer's file of a folder, or of a hub's model that is on this machine."""
    if Path(model).is_dir():
        return Path(model) / FILE
    from huggingface_hub import try_to_load_from_cache  # not above: buffers load this module
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, FILE)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
