"""The seam of an engine's server: what an optional capability does with the weights and the requests of a policy.

Each capability is a class in a file of its own, which `asyncrl.weights.vllm_configured` names in its table. What all
engines do is in `vllm_served`, `vllm_swap` and `vllm_generation`, which call the hooks and know none of them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

    from asyncrl.weights.files import WeightFile
    from asyncrl.weights.vllm_served import Served

Engine: TypeAlias = "AsyncLLM"
"""vLLM's engine, as its server has it."""
Route = Callable[[Engine, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a request's body. What it raises is answered as by `vllm_routes.Routes`."""


@dataclass(slots=True)
class Asked:
    """One request for a sequence, on its way through the server."""

    request: Mapping[str, Any]
    """As the client has sent it."""
    prompt: Any
    """As vLLM takes it: the request's token ids."""
    sampling: SamplingParams
    """Shared with other requests: who changes it puts a copy in its place."""
    min_version: int
    """The engine must serve this version, or a newer one."""
    order: int
    """Requests of lower order are scheduled first."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's `generate`."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What a hook keeps of the request until it has ended, by a name of its own."""


class EngineHook:
    """One capability of one policy. A method that it does not override is not called."""

    raw_route: re.Pattern[str] | None = None
    """A route whose answer it writes itself (`answer_raw`). Whoever may fetch weights may call it."""
    vllm_paths: frozenset[str] = frozenset()
    """Paths of vLLM's own server that trainer and run may call for its sake."""

    def __init__(self, policy: Served) -> None:
        self.policy = policy

    def routes(self) -> dict[str, Route]:
        """Return routes for the trainer by their names, such as "weights/expect"."""
        return {}

    async def answer_raw(self, wanted: re.Match[str], scope: Any, receive: Any, send: Any) -> None:
        """Answer a request for `raw_route` as an ASGI application does."""

    async def made_room(self, engine: Engine, file: WeightFile) -> dict[str, Any]:
        """There is room for a file that is to come, on the server's machine; return what else its sender must know.

        Raises `UnavailableError` where it cannot come.
        """
        return {}

    async def before_prepare(self, file: WeightFile) -> None:
        """A file is to be verified: the engine's own copy where the staging folder has one, else the trainer's."""

    async def verified(self, engine: Engine, file: WeightFile) -> None:
        """A file has been verified on the server's machine. Raises `UnavailableError` where it cannot be loaded."""

    async def about_to_load(self, engine: Engine, file: WeightFile) -> None:
        """A verified file is to be loaded now. Raises `UnavailableError` where it cannot be; the old weights go on."""

    def keeps_cache(self, options: Mapping[str, Any]) -> bool:
        """Return whether the KV cache outlives this swap. options: the commit's body. Raises `InputError`."""
        return False

    def paused_since(self) -> float | None:
        """Return since when generation has been paused for the new weights, of `time.perf_counter`."""
        return None

    async def swapping(self, engine: Engine, file: WeightFile, options: Mapping[str, Any]) -> None:
        """Generation is paused, and the weights are about to be replaced. What it raises ends the engine."""

    def swapped(self) -> None:
        """The weights have been replaced; generation goes on now."""

    async def committed(self, engine: Engine, file: WeightFile) -> None:
        """A file has been loaded, by whatever loader."""

    def read_body(self, body: dict[str, Any]) -> None:
        """Read what a body has for all of its requests, which may be changed. Raises `InputError`."""

    async def read(self, engine: Engine, asked: Asked) -> None:
        """Change a request that was read, before its version is checked. Raises `InputError` to refuse it."""

    def hold(self, asked: Asked) -> None:
        """The request is served now. What is held for it is let go by `release`. Raises `InputError`."""

    async def report(
        self, engine: Engine, asked: Asked, final: RequestOutput, answer: dict[str, Any]
    ) -> None:
        """Change the answer to a request that has finished."""

    def release(self, asked: Asked) -> None:
        """The request has ended, however it did."""

    def state(self, engine: Engine) -> dict[str, Any]:
        """Return what the engine's state says besides."""
        return {}


def having(hooks: Iterable[EngineHook], method: str) -> list[EngineHook]:
    """Return the hooks that override a method."""
    return [one for one in hooks if getattr(type(one), method) is not getattr(EngineHook, method)]
