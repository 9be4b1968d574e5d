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
from asyncrl.extensions.lora.peft_form import TENSORS
from asyncrl.extensions.lora.vllm_on_cpu import group_adapters
from asyncrl.extensions.tinker.token_extra import SAMPLER
from asyncrl.weights.vllm_hooks import Asked, Engine, EngineHook

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    from asyncrl.weights.vllm_served import Served

ADAPTERS = "ASYNCRL_TINKER_ADAPTERS"
"""Environment variable: the folder of adapters."""
MOST_KNOWN = 4096
"""Names that are remembered; vLLM itself keeps far fewer adapters."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
"""A folder below it: POLICY/NAME."""


def sample_from_adapters() -> None:
    """Prepare each process of the server for adapters."""
    group_adapters()


class Samplers(EngineHook):
    """Gives requests the adapter that they name."""

    def __init__(self, policy: Served) -> None:
        super().__init__(policy)
        self._folder = Path(os.environ[ADAPTERS])
        self._numbers = itertools.count(1)
        self._known: dict[str, tuple[int, LoRARequest]] = {}
        """By name, when the adapter was written, and vLLM's name of it."""

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
        from vllm.lora.request import LoRARequest

        if not NAME.fullmatch(name) or ".." in name:
            raise InputError(f"sampler: there is no adapter {name!r}")
        try:
            written = (self._folder / name / TENSORS).stat().st_mtime_ns
        except FileNotFoundError:
            raise InputError(f"sampler: there is no adapter {name!r}") from None
        when, found = self._known.get(name, (0, None))
        if found is None or when != written:
            # One that was deleted and made anew is another, of which vLLM must not keep the old one.
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            number = next(self._numbers)
            found = LoRARequest(f"{name}#{number}", number, str(self._folder / name))
            self._known[name] = written, found
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
