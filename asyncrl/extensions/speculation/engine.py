"""Speculative decoding: what the engine is told, and what it cannot do.

Rejection sampling leaves the distribution as it is, but vLLM reports log-probabilities exactly only in one mode beside
it: `processed_logprobs` gives 0 for accepted tokens, `raw_logprobs` those before temperature and truncation. At
temperature 1 without truncation both mean the same, so that is all a speculating engine serves.
"""

from __future__ import annotations

import importlib.util
import json

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.speculation.settings import SpeculationConfig, SpeculativeConfig
from asyncrl.services.engine.additions import Addition

NGRAM_LENGTHS = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Tokens at the end of a context that are looked up in it."""


def check_speculation(speculative: SpeculativeConfig) -> None:
    """Raise `ConfigError` where a package is missing that a method needs."""
    if speculative.method == "suffix" and importlib.util.find_spec("arctic_inference") is None:
        raise ConfigError(
            "engine.speculative.method: 'suffix' needs the package arctic-inference, which is not installed (pip "
            "install arctic-inference==0.1.1); without it: off, ngram"
        )


def speculating(config: Config, publishes: bool) -> Addition:
    """Return what engines are started with that speculate. Raises `ConfigError` where a package is missing."""
    speculative = config.section(SpeculationConfig).speculative
    check_speculation(speculative)
    settings: dict[str, object] = {
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_speculative_tokens,
    }
    if speculative.method == "ngram":
        settings |= NGRAM_LENGTHS
    if speculative.model:
        settings["model"] = speculative.model
    return Addition(("--logprobs-mode", "raw_logprobs", "--speculative-config", json.dumps(settings)))
