"""What an engine serves of one policy: its weights, how new ones are loaded, and how missed ones are caught up with.

Each policy has its own version and its own folder of weights, and commits to one do not affect the others. What is
optional has a say by hooks (`vllm_hooks`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError, UnavailableError
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.files import WeightFile, verify_weights
from asyncrl.weights.position import Position, weight_file_from_json
from asyncrl.weights.staging import Staging
from asyncrl.weights.vllm_hooks import Engine, EngineHook, Route, having
from asyncrl.weights.vllm_swap import Loader, PauseMode, Swap, base_version

log = logging.getLogger("asyncrl.weights")


class Served:
    """One policy of an engine.

    folder: its folder of weights; empty for an engine of no run. committing: held while the engine loads anything.
    hooks: make what is optional. loader: makes what loads the weights; it may be a hook, too.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        committing: asyncio.Lock,
        hooks: Sequence[Callable[[Served], EngineHook]] = (),
        loader: Callable[[Served], Loader] = Swap,
    ) -> None:
        self.name = name
        self.folder = folder
        self.committing = committing
        self.position = Position(folder, base_version())
        self._attempt: asyncio.Future[None] | None = None
        """The newest attempt to catch up."""
        self.staging = Staging(folder)
        self._preparing = asyncio.Lock()
        """Held while a version is verified, since `prepared` is one at a time."""
        self.prepared: WeightFile | None = None
        """What was verified last, as it is on this machine."""
        self.loader = loader(self)
        self.hooks = [make(self) for make in hooks]
        if isinstance(self.loader, EngineHook):
            self.hooks.append(self.loader)
        self.readers, self.holders = having(self.hooks, "read"), having(self.hooks, "hold")
        self.reporters = having(self.hooks, "report")
        self.routes: dict[str, Route] = {
            "weights/epoch": self._epoch,
            "weights/base": self._base,
            "weights/adopt": self._adopt,
            "weights/expect": self._expect,
            "weights/prepare": self._prepare,
            "weights/commit": self._commit,
        }
        """By their names, what answers the trainer."""
        for hook in self.hooks:
            self.routes |= hook.routes()

    def own(self, request_id: str) -> str:
        """Return the engine's id for a request, distinct from those of whatever else it serves."""
        return request_id if self.name == MAIN_POLICY else f"{self.name}/{request_id}"

    async def expect(self, engine: Engine, file: WeightFile) -> dict[str, Any]:
        """Make room for a file that is to come; return its path, what is loaded, and what hooks add.

        Raises `InputError` if there is not enough, `UnavailableError`.
        """
        path = await asyncio.to_thread(self.staging.make_room, file)
        answer: dict[str, Any] = {"path": str(path), "base": self.position.checksum}
        for hook in self.hooks:
            answer |= await hook.made_room(engine, file)
        return answer

    async def prepare(self, engine: Engine, file: WeightFile) -> float:
        """Verify weights, those that were received before those in the file; return the seconds it took.

        Raises `InputError`, `UnavailableError`.
        """
        async with self._preparing:
            for hook in self.hooks:
                await hook.before_prepare(file)
            if (received := self.staging.local(file)) is not None:
                try:
                    return await self._verify(engine, received)
                except InputError as error:
                    log.error("%s; reading the file instead", error)
                    self.staging.drop(file)
            return await self._verify(engine, self.own_file(file))

    async def _verify(self, engine: Engine, file: WeightFile) -> float:
        # What another engine's copy was compared with when it was taken over need not be computed again.
        took_s = 0.0 if self._is_compared(file) else await asyncio.to_thread(verify_weights, file)
        self.prepared = file
        for hook in self.hooks:
            await hook.verified(engine, file)
        return took_s

    def _is_compared(self, file: WeightFile) -> bool:
        return file == self.staging.local(file) and self.staging.is_compared(file)

    def own_file(self, file: WeightFile) -> WeightFile:
        """Return a weight file that lies below this policy's folder of weights. Raises `InputError` for any other."""
        self.below_folder(file.path)
        return file

    def below_folder(self, path: str) -> str:
        """Return a path below this policy's folder of weights. Raises `InputError` for any other."""
        if not self.folder:
            raise InputError("this engine was started without --weights-dir and takes no weights")
        if not Path(path).resolve().is_relative_to(Path(self.folder).resolve()):
            raise InputError(f"path: must lie below the folder of weights, {self.folder}")
        return path

    async def newest(self, engine: Engine) -> int:
        """Return the newest version served."""
        return await self.loader.newest(engine)

    async def check_version(self, engine: Engine, least: int) -> None:
        """Raise `UnavailableError` if a request needs an engine with newer weights."""
        if least <= self.position.version:
            return
        version = await self.newest(engine)
        if least > version:
            raise UnavailableError(
                f"the engine serves version {version}, the group was admitted at version {least}"
            )

    async def commit(
        self, engine: Engine, file: WeightFile, mode: PauseMode, options: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Load weights between two decoding steps; return the version and the seconds the engine was busy.

        mode: whether running requests freeze and continue with the new ones, or finish first. options: the request's
        body. Raises `InputError`, `ConflictError`.
        """
        async with self.committing:
            if self.position.repeats(file):
                return {"version": file.version, "pause_s": 0.0}
            report = await self._load(engine, self.staging.local(file) or self.own_file(file), mode, options)
            self.staging.keep_only(file)
            for hook in self.hooks:
                await hook.committed(engine, file)
            return report

    async def catch_up(self, engine: Engine) -> None:
        """Load the version that the run has committed, once after the start. Raises `UnavailableError`.

        Concurrent callers share one attempt and its result; the next call after a failed attempt starts another.
        """
        try:
            if self.position.missed() is None:
                return
            if self._attempt is None or self._attempt.done():
                self._attempt = asyncio.ensure_future(self._catch_up(engine))
            # A client that disconnects must not cancel what the others wait for.
            await asyncio.shield(self._attempt)
        except InputError as error:
            raise UnavailableError(f"the engine could not catch up yet: {error}") from error

    async def _catch_up(self, engine: Engine) -> None:
        async with self.committing:
            missed = self.position.missed()
            if missed is None:
                return
            # Tens of gigabytes may take longer than the launcher's health probes wait.
            async with self._preparing:
                await self._verify(engine, missed)
            await self._load(engine, missed)
            log.warning("caught up with version %d", missed.version)

    async def _load(
        self,
        engine: Engine,
        file: WeightFile,
        mode: PauseMode = "keep",
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        # What is missing once loading has begun ends the engine.
        if not Path(file.path).is_file():
            raise UnavailableError(f"{file.path} is no longer there; prepare version {file.version} again")
        for hook in having(self.hooks, "about_to_load"):
            await hook.about_to_load(engine, file)
        busy_s = await self.loader.load(engine, file, mode, options or {})
        return {"version": file.version, "pause_s": busy_s}

    async def _epoch(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        return {"epoch": self.position.epoch}

    async def _base(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        weight_file_from_json(body)
        return {"base": self.position.checksum}

    async def _adopt(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        """Share what another engine of this machine has of a version, instead of having it brought."""
        file = weight_file_from_json(body)
        kind = file.kind_for(self.position.checksum)
        adopted = await asyncio.to_thread(self.staging.adopt, file, kind)
        return {"adopted": adopted, "place": f"{self.staging.place()}/{kind}"}

    async def _expect(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        return await self.expect(engine, weight_file_from_json(body))

    async def _prepare(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        return {"verify_s": await self.prepare(engine, weight_file_from_json(body))}

    async def _commit(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        return await self.commit(engine, weight_file_from_json(body), pause_mode(body), body)


def pause_mode(body: Mapping[str, Any]) -> PauseMode:
    """Return what running requests do where a request's body has generation paused."""
    return "wait" if body.get("finish_requests") else "keep"
