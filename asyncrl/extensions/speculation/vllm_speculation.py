"""An engine that speculates: what it cannot report exactly, and how many of its guesses were right.

Rejection sampling leaves the distribution as it is, but vLLM reports log-probabilities before temperature and
truncation then (`raw_logprobs`, see `asyncrl.extensions.speculation.engine`).
"""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY
from vllm import SamplingParams

from asyncrl.errors import InputError
from asyncrl.weights.vllm_hooks import Asked, Engine, EngineHook

_COUNTERS = {
    "vllm:spec_decode_num_draft_tokens": "proposed_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
}


class Speculation(EngineHook):
    """Refuses what cannot be reported, and adds the counters to the state, where the engine speculates."""

    async def read(self, engine: Engine, asked: Asked) -> None:
        """See `EngineHook`."""
        if engine.vllm_config.speculative_config is not None:
            check_speculated(asked.sampling)

    def state(self, engine: Engine) -> dict[str, Any]:
        """See `EngineHook`."""
        return _counted() if engine.vllm_config.speculative_config is not None else {}


def check_speculated(sampling: SamplingParams) -> None:
    """Raise `InputError` for a request whose log-probabilities an engine that speculates cannot report exactly.

    Greedy ones are those of temperature 1, with and without speculation.
    """
    plain = {
        "temperature": sampling.temperature in (0.0, 1.0),
        "top_p": sampling.top_p == 1.0,
        "top_k": sampling.top_k in (0, -1),
        "min_p": sampling.min_p == 0.0,
        "presence_penalty": sampling.presence_penalty == 0.0,
        "frequency_penalty": sampling.frequency_penalty == 0.0,
        "repetition_penalty": sampling.repetition_penalty == 1.0,
        "schema": sampling.structured_outputs is None,
    }
    if wrong := [name for name, unchanged in plain.items() if not unchanged]:
        raise InputError(
            f"{wrong[0]}: this engine speculates (engine.speculative) and reports log-probabilities before "
            "temperature, truncation and penalties, so it samples at temperature 1 or 0 and without any of them"
        )


def _counted() -> dict[str, int]:
    """Return how many tokens were proposed and accepted since the engine started."""
    totals = dict.fromkeys(_COUNTERS.values(), 0)
    for metric in REGISTRY.restricted_registry([f"{name}_total" for name in _COUNTERS]).collect():
        totals[_COUNTERS[metric.name]] += sum(
            int(s.value) for s in metric.samples if s.name.endswith("_total")
        )
    return totals
