"""A policy's adapters in an engine: the newest version's, those of older versions that running requests still use, and
those of a population of opponents.

A request keeps the adapter it started with, so a commit interrupts nothing: vLLM decodes requests of several adapters
in one batch. Each commit unloads the older adapters that are no members and that no request uses anymore.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.config_sections import LoraConfig
from asyncrl.errors import InputError
from asyncrl.weights.adapter import TENSORS, write_adapter_config
from asyncrl.weights.files import WeightFile

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM


@dataclass(slots=True, eq=False)
class _Held:
    version: int
    request: LoRARequest | None
    """None for the base model, which needs no adapter."""
    checksum: str = ""
    users: int = 0


class Adapters:
    """Loads, lends and unloads the adapters of one policy.

    folder: where the engine keeps its own links to the files, since a publisher removes those of older versions.
    ids: numbers for adapters, unique in the engine.
    """

    def __init__(self, lora: LoraConfig, folder: str, base_version: int, ids: Iterator[int]) -> None:
        self.lora = lora
        Path(folder).mkdir(parents=True, exist_ok=True)
        # What a killed engine leaves behind is removed with the run's folder of weights.
        self._folder = tempfile.TemporaryDirectory(prefix="adapters-", dir=folder)
        self._ids = ids
        self.newest = self._base = _Held(base_version, None)
        self._held = [self.newest]

    @property
    def versions(self) -> list[int]:
        """Versions that can be served, oldest first."""
        return sorted(held.version for held in self._held)

    async def load(
        self, engine: AsyncLLM, file: WeightFile, members: Sequence[WeightFile] | None = None
    ) -> float:
        """Make `file` the newest adapter, with the members beside it; return the seconds the engine was busy.

        members: past versions to hold, with the base model; None for none. Raises `InputError` if vLLM refuses an
        adapter; the versions served before stay.
        """
        kept = {(member.version, member.checksum) for member in members or ()}
        if members is not None:
            kept.add((self._base.version, self._base.checksum))
            if self._base not in self._held:
                self._held.insert(0, self._base)
        gone = [h for h in self._held if not (h.users or h is self.newest or (h.version, h.checksum) in kept)]
        self._held = [held for held in self._held if held not in gone]
        start = time.perf_counter()
        try:
            there = {(held.version, held.checksum) for held in self._held}
            for member in members or ():
                if (member.version, member.checksum) not in there:
                    self._held.append(await self._add(engine, member))
            self.newest = await self._add(engine, file)
            self._held.append(self.newest)
        finally:
            # Only now, since vLLM may have scheduled one more step for a request that has been answered.
            await self._unload(engine, gone)
        return time.perf_counter() - start

    async def _add(self, engine: AsyncLLM, file: WeightFile) -> _Held:
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

    @contextmanager
    def serve(self, version: int | None) -> Iterator[tuple[int, LoRARequest | None]]:
        """Hold the adapter of `version` (None: the newest) for one request. Raises `InputError` naming those held."""
        held = self._find(version)
        held.users += 1
        try:
            yield held.version, held.request
        finally:
            held.users -= 1

    def _find(self, version: int | None) -> _Held:
        if version is None:
            return self.newest
        for held in reversed(self._held):
            if held.version == version:
                return held
        raise InputError(f"version: this engine holds {self.versions}, got {version}")

    async def _unload(self, engine: AsyncLLM, gone: list[_Held]) -> None:
        for held in gone:
            if held.request is not None:
                await engine.remove_lora(held.request.lora_int_id)
                shutil.rmtree(held.request.lora_path, ignore_errors=True)
