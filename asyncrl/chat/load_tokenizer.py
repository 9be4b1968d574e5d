"""The tokenizer of a model folder or hub name, its chat template and its stop tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.textfile import read_text


def load_tokenizer(model: str) -> Any:
    """Return the tokenizer, with a token for padding and one that ends turns. Raises `ConfigError`."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:300]
        raise ConfigError(
            f"model.path: no tokenizer can be loaded from {model!r}; give a Hugging Face model folder or a hub name "
            f"({reason})"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"model.path: the tokenizer of {model!r} has no eos_token, so nothing would end a turn; name one in its "
            "tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        # Nothing that is padded is read; some loaders want a token all the same.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def read_template(path: str) -> str:
    """Return the chat template of a file. Raises `ConfigError`."""
    try:
        text = read_text(Path(path).expanduser())
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.chat_template: {path!r} cannot be read: {error}") from error
    if not text.strip():
        raise ConfigError(f"model.chat_template: {path!r} is empty")
    return text


def generation_stops(model: str) -> list[int]:
    """Return the stop tokens that the generation config of a model names."""
    from transformers import GenerationConfig

    try:
        named = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        # Many base models have none.
        return []
    return [int(i) for i in (named if isinstance(named, list) else [named]) if i is not None]
