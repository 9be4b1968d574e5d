"""What recorded experts ask of a run before it starts: that the buffer takes its groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.buffer.body_files import MAX_GROUP_BYTES
from asyncrl.config import Config
from asyncrl.errors import ConfigError

MIB = 2**20
TOKEN_BYTES = 16
"""The bytes of a token in a group: its id, log-probability, version and mask."""


def check_group_size(config: Config, description: Mapping[str, Any]) -> None:
    """Refuse groups that the buffer would not take: the experts of each token are the most of them.

    description: what the model's `config.json` says. Raises `ConfigError`.
    """
    text = description.get("text_config") or description
    chosen, layers = text.get("num_experts_per_tok", 0), text.get("num_hidden_layers", 0)
    if not chosen:
        return
    experts = text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts") or 0
    token_bytes = TOKEN_BYTES + chosen * layers * (1 if experts <= 256 else 2)
    needed = config.rollout.group_size * config.max_tokens * token_bytes
    if needed > MAX_GROUP_BYTES:
        most = MAX_GROUP_BYTES // (token_bytes * config.rollout.group_size)
        raise ConfigError(
            f"train.router_replay: a group of rollout.group_size={config.rollout.group_size} episodes of "
            f"engine.max_model_len={config.engine.max_model_len} tokens with their experts has {needed / MIB:.0f} MiB, "
            f"and the buffer takes {MAX_GROUP_BYTES / MIB:.0f}; have smaller groups, or at most {most:,} tokens"
        )
