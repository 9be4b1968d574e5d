"""The engine's half: a request names the adapter that samples, and texts that end it.

Adapters are folders that the server has written below one that the engine was started with. vLLM loads one when a
request needs it, keeps those used last, and decodes requests of several in one batch.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import InputError
from asyncrl.extensions.tinker.token_extra import SAMPLER
from asyncrl.weights.adapter import TENSORS
from asyncrl.weights.vllm_hooks import Asked, Engine, EngineHook

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    from asyncrl.weights.vllm_served import Served

ADAPTERS = "ASYNCRL_TINKER_ADAPTERS"
"""Environment variable: the folder of adapters."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
"""A folder below it: POLICY/NAME."""


class Samplers(EngineHook):
    """Gives requests the adapter that they name."""

    def __init__(self, policy: Served) -> None:
        super().__init__(policy)
        self._folder = Path(os.environ[ADAPTERS])
        self._numbers = itertools.count(1)
        self._known: dict[str, LoRARequest] = {}

    async def read(self, engine: Engine, asked: Asked) -> None:
        """See `EngineHook`."""
        sampler = asked.request.get(SAMPLER)
        if sampler is None:
            return
        if name := sampler["adapter"]:
            asked.arguments["lora_request"] = self._request(name)
        if sampler["stop"] or sampler["to_the_end"]:
            asked.sampling = _ending(asked.sampling, sampler)

    def _request(self, name: str) -> LoRARequest:
        """Return vLLM's name of an adapter. Raises `InputError` for one that is not there."""
        found = self._known.get(name)
        if found is None:
            from vllm.lora.request import LoRARequest

            folder = self._folder / name
            if not NAME.fullmatch(name) or ".." in name or not (folder / TENSORS).is_file():
                raise InputError(f"sampler: there is no adapter {name!r}")
            found = self._known[name] = LoRARequest(name, next(self._numbers), str(folder))
        return found


def _ending(sampling: SamplingParams, sampler: dict[str, Any]) -> SamplingParams:
    """Return parameters that end where a sampler says."""
    ending = sampling.clone()
    if sampler["to_the_end"]:
        ending.ignore_eos = True
    if sampler["stop"]:
        ending.stop = list(sampler["stop"])
        ending.detokenize = True
        ending.include_stop_str_in_output = True
    return ending
