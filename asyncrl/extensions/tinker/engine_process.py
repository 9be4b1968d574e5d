"""The engine of a Tinker server: `python -m asyncrl.extensions.tinker.engine_process OPTIONS READY_FILE`.

OPTIONS: JSON of `EngineOptions` that the server has chosen, with what it keeps adapters by.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from asyncrl.credentials import own_credentials
from asyncrl.extensions.lora.peft_form import buffer_rank
from asyncrl.extensions.tinker.vllm_samplers import ADAPTERS
from asyncrl.services.engine.additions import Addition
from asyncrl.services.engine.service import EngineOptions, serve_engine

KEPT_ADAPTERS = 4
"""For each adapter that decodes at a time, those that stay loaded on the host."""


def adapters(folder: str, rank: int, at_once: int, modules: Sequence[str]) -> Addition:
    """Return what the engine needs to sample from adapters in a folder, of ranks up to `rank`, on layers `modules`."""
    arguments = (
        *("--enable-lora", "--max-lora-rank", str(buffer_rank(rank))),
        *("--max-loras", str(at_once), "--max-cpu-loras", str(KEPT_ADAPTERS * at_once)),
        # Else vLLM would look for one on the vocabulary projection, too, and die of a batch with log-probabilities of
        # prompts, for which it takes the adapters of the sampled tokens.
        *("--lora-target-modules", *modules),
    )
    return Addition(arguments, {ADAPTERS: folder})


def main() -> int:
    """Serve until told to stop."""
    given = json.loads(sys.argv[1])
    addition = adapters(
        given.pop("adapters"), given.pop("lora_rank"), given.pop("at_once"), given.pop("modules")
    )
    options = EngineOptions(**given, additions=(addition,))
    return serve_engine(options, own_credentials(), 0, sys.argv[2])


if __name__ == "__main__":
    sys.exit(main())
