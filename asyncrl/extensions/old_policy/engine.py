"""What an engine is started with that says what its versions have sampled."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.old_policy.vllm_sampled import KEEP_SAMPLED
from asyncrl.services.engine.additions import Addition


def keeping(config: Config, publishes: bool) -> Addition:
    """Return what has an engine keep the sequences of each version. One that is brought no new weights is not asked."""
    return Addition(variables={KEEP_SAMPLED: "1"} if publishes else {})
