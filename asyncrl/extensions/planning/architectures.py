"""The `config.json` of a model: its folder's, the hub's cached one, or one of those shipped here. Loads no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError

SHIPPED = Path(__file__).parent / "architectures"
VARIANTS = ("-Base", "-Instruct", "-Instruct-2507", "-Thinking-2507")
"""Ends of names that say how a model was trained, which does not change its shape."""
TINY_VOCABULARY = 512
"""The vocabulary of the base model that `model.path = "sft"` makes; the real one depends on its episodes and is
smaller."""


def architecture(config: Config, key: str, path: str) -> dict[str, Any]:
    """Return the description of the model at `path`, the value of `key`. Raises `ConfigError`."""
    if path == "sft":
        return tiny_architecture(config)
    folder = Path(path)
    if folder.is_dir():
        return _read(key, folder / "config.json")
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(path, "config.json") if path.count("/") <= 1 else None
    if isinstance(found, str):
        return _read(key, Path(found))
    names = shipped()
    plain = _plain(path)
    for name, file in names.items():
        if plain in (_plain(name), _plain(name.partition("/")[2])):
            return _read(key, file)
    raise ConfigError(
        f"{key}: the shape of {path!r} is not known: give a folder with config.json, a model of the hub that is in the "
        f"cache, or one of {', '.join(names)}"
    )


def shipped() -> dict[str, Path]:
    """Return the files of the models whose shape is known without a network, by name."""
    return {file.stem.replace("--", "/"): file for file in sorted(SHIPPED.glob("*.json"))}


def tiny_architecture(config: Config) -> dict[str, Any]:
    """Return the shape of the base model that is made for `model.path = "sft"`."""
    sft = config.sft
    return {
        "model_type": "qwen3",
        "vocab_size": TINY_VOCABULARY,
        "hidden_size": sft.hidden_size,
        "intermediate_size": 3 * sft.hidden_size,
        "num_hidden_layers": sft.num_layers,
        "num_attention_heads": sft.num_heads,
        "num_key_value_heads": max(1, sft.num_heads // 2),
        "head_dim": sft.hidden_size // sft.num_heads,
        "max_position_embeddings": config.engine.max_model_len,
        "tie_word_embeddings": True,
    }


def _plain(name: str) -> str:
    for ending in VARIANTS:
        name = name.removesuffix(ending)
    return name.lower()


def _read(key: str, file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {file}: cannot be read: {error}") from error
    if "model_type" not in found:
        raise ConfigError(f"{key}: {file}: names no model_type")
    if "vision_config" in found:
        raise ConfigError(f"{key}: {file}: the memory of vision models is not predicted")
    return found
