"""A policy's adapters in an engine: the newest version's, those of older versions that running requests still use, and
those of a population of opponents.

A request keeps the adapter it started with, so a commit interrupts nothing: vLLM decodes requests of several adapters
in one batch. Each commit unloads the older adapters that are no members and that no request uses anymore.
A request may name the `version` to be served by.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.config_sections import LoraConfig
from asyncrl.errors import InputError
from asyncrl.extensions.lora.engine import LORA, POLICIES
from asyncrl.extensions.lora.peft_form import TENSORS, write_adapter_config
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.files import WeightFile, verify_weights
from asyncrl.weights.members import read_members
from asyncrl.weights.vllm_hooks import Asked, Engine, EngineHook
from asyncrl.weights.vllm_swap import PauseMode, base_version

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput

    from asyncrl.weights.vllm_served import Served

TOKEN_BYTES = 4
_HELD = "adapter"


def loaders(env: Mapping[str, str]) -> dict[str, Callable[[Served], Adapters]]:
    """Return by the name of each policy what makes its loader. env: the server's."""
    settings = {MAIN_POLICY: json.loads(env[LORA]), **json.loads(env.get(POLICIES) or "{}")}
    ids = itertools.count(1)
    return {
        name: functools.partial(Adapters, lora=LoraConfig.model_validate(one), ids=ids)
        for name, one in settings.items()
    }


@dataclass(slots=True, eq=False)
class _Held:
    version: int
    request: LoRARequest | None
    """None for the base model, which needs no adapter."""
    checksum: str = ""
    users: int = 0


class Adapters(EngineHook):
    """Loads, lends and unloads the adapters of one policy: its `Loader`, and what has requests served by them.

    In the policy's folder of weights the engine keeps its own links to the files, since a publisher removes those of
    older versions. ids: numbers for adapters, unique in the engine.
    """

    def __init__(self, policy: Served, lora: LoraConfig, ids: Iterator[int]) -> None:
        super().__init__(policy)
        self.lora = lora
        Path(policy.folder).mkdir(parents=True, exist_ok=True)
        # What a killed engine leaves behind is removed with the run's folder of weights.
        self._folder = tempfile.TemporaryDirectory(prefix="adapters-", dir=policy.folder)
        self._ids = ids
        self._newest = self._base = _Held(base_version(), None)
        self._held = [self._newest]

    @property
    def versions(self) -> list[int]:
        """Versions that can be served, oldest first."""
        return sorted(held.version for held in self._held)

    async def newest(self, engine: Engine) -> int:
        """See `Loader`."""
        return self.policy.position.version

    async def load(
        self, engine: Engine, file: WeightFile, mode: PauseMode, options: Mapping[str, Any]
    ) -> float:
        """See `Loader`. Running requests keep their adapters, whatever the mode."""
        members = read_members(self.policy.folder) if self.policy.folder else None
        for member in members or ():
            await asyncio.to_thread(verify_weights, self.policy.own_file(member))
        busy_s = await self._load(engine, file, members)
        self.policy.position.moved(file)
        return busy_s

    async def _load(self, engine: Engine, file: WeightFile, members: Sequence[WeightFile] | None) -> float:
        """Make `file` the newest adapter, with the members beside it; return the seconds the engine was busy.

        members: past versions to hold, with the base model; None for none. Raises `InputError` if vLLM refuses an
        adapter; the versions served before stay.
        """
        kept = {(member.version, member.checksum) for member in members or ()}
        if members is not None:
            kept.add((self._base.version, self._base.checksum))
            if self._base not in self._held:
                self._held.insert(0, self._base)
        gone = [
            h for h in self._held if not (h.users or h is self._newest or (h.version, h.checksum) in kept)
        ]
        self._held = [held for held in self._held if held not in gone]
        start = time.perf_counter()
        try:
            there = {(held.version, held.checksum) for held in self._held}
            for member in members or ():
                if (member.version, member.checksum) not in there:
                    self._held.append(await self._add(engine, member))
            self._newest = await self._add(engine, file)
            self._held.append(self._newest)
        finally:
            # Only now, since vLLM may have scheduled one more step for a request that has been answered.
            await self._unload(engine, gone)
        return time.perf_counter() - start

    async def _add(self, engine: Engine, file: WeightFile) -> _Held:
        """Have vLLM load an adapter. Raises `InputError`."""
        from vllm.lora.request import LoRARequest

        number = next(self._ids)
        place = Path(self._folder.name) / str(number)
        place.mkdir()
        try:
            os.link(file.path, place / TENSORS)
        except OSError:
            shutil.copyfile(file.path, place / TENSORS)
        write_adapter_config(place, self.lora, base_model="policy")
        # vLLM finds cached prefixes by the adapter's name, and a trainer may publish a version twice.
        request = LoRARequest(f"version-{file.version}-{number}", number, str(place))
        try:
            await engine.add_lora(request)
        except Exception as error:
            shutil.rmtree(place, ignore_errors=True)
            raise InputError(f"adapter of version {file.version}: vLLM refuses it: {error}") from error
        return _Held(file.version, request, file.checksum)

    def hold(self, asked: Asked) -> None:
        """See `EngineHook`. Of the `version` that the request names, else the newest one's. Raises `InputError` naming
        those held."""
        held = asked.notes[_HELD] = self._find(asked.request.get("version"))
        held.users += 1
        asked.arguments["lora_request"] = held.request

    async def report(
        self, engine: Engine, asked: Asked, final: RequestOutput, answer: dict[str, Any]
    ) -> None:
        """See `EngineHook`."""
        answer["spans"] = [[asked.notes[_HELD].version, 0, len(answer["token_ids"]) // TOKEN_BYTES]]

    def release(self, asked: Asked) -> None:
        """See `EngineHook`."""
        asked.notes[_HELD].users -= 1

    def _find(self, version: int | None) -> _Held:
        if version is None:
            return self._newest
        for held in reversed(self._held):
            if held.version == version:
                return held
        raise InputError(f"version: this engine holds {self.versions}, got {version}")

    async def _unload(self, engine: Engine, gone: list[_Held]) -> None:
        for held in gone:
            if held.request is not None:
                await engine.remove_lora(held.request.lora_int_id)
                shutil.rmtree(held.request.lora_path, ignore_errors=True)
