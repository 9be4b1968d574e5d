"""Counts the tokens of texts by a model's own tokenizer, without loading torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.errors import ConfigError

KEY = "data.max_prompt_tokens"
FILE = "tokenizer.json"

Counter = Callable[[Sequence[str]], Sequence[int]]
"""Returns how many tokens each of several texts has."""


def token_counter(model: str) -> Counter:
    """Return what counts the tokens of a model: a folder or hub name. Raises `ConfigError` where it has no tokenizer in
    the form of the `tokenizers` library."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_file(model)))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        return [
            len(found.ids) for found in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    return count


def tokenizer_state(model: str) -> str:
    """Return what is equal for tokenizers that count alike. Raises as `token_counter` does."""
    return hashlib.blake2b(_file(model).read_bytes(), digest_size=8).hexdigest()


def _file(model: str) -> Path:
    if model == "sft":
        raise ConfigError(
            f"{KEY}: must be 0 for model.path='sft', whose tokenizer is made of the prompts themselves"
        )
    if (file := Path(model).expanduser() / FILE).is_file():
        return file
    if not Path(model).expanduser().exists():
        import huggingface_hub

        try:
            return Path(huggingface_hub.hf_hub_download(model, FILE))
        except Exception as error:
            # Of whichever HTTP library the hub's client uses.
            raise ConfigError(f"{KEY}: {model!r} has no {FILE} to count by: {error}") from error
    raise ConfigError(f"{KEY}: {model!r} has no {FILE} to count by")
