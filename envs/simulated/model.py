"""Asks the simulating model: live, live and recorded, or from a recording."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from asyncrl.env.chat_endpoint import ChatEndpoint, message_of
from asyncrl.envs.simulated.stand_in import complete
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.textfile import json_lines

MODES = ("live", "record", "replay")
_WRITING = threading.Lock()


class Model:
    """A chat-completions endpoint, or the stand-in if `url` is empty.

    url: as "http://host:port/v1". recording: a file of JSON lines {"key", "request", "reply"}; "record" uses existing
    replies and appends new ones, "replay" makes no requests.
    """

    def __init__(self, url: str, name: str, mode: str, recording: str, timeout_s: float) -> None:
        if mode != "live" and not recording:
            raise ConfigError(f"env.config.recording: mode {mode!r} needs a file")
        if mode == "replay" and not Path(recording).is_file():
            raise ConfigError(f"env.config.recording: {recording}: is no file to replay")
        self.url, self.name, self.mode, self.recording = url.rstrip("/"), name, mode, recording
        self._endpoint = ChatEndpoint("simulated", url, timeout_s)

    @property
    def longest_s(self) -> float:
        """How long one reply may take; 0.0 where no endpoint is asked."""
        return self._endpoint.longest_s if self.url and self.mode != "replay" else 0.0

    async def ask(self, messages: list[dict[str, str]], schema: dict[str, Any]) -> str:
        """Return the model's reply to a conversation, at temperature 0.

        Raises `EnvironmentFailure` if the request is not in the recording or the endpoint refuses it,
        `InfrastructureError` if the endpoint cannot be reached or stays too busy.
        """
        request = {
            "model": self.name,
            "messages": messages,
            "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}},
        }
        key = request_key(request)
        if self.mode != "live":
            recorded = await asyncio.to_thread(read_recording, self.recording)
            if key in recorded:
                return recorded[key]
        if self.mode == "replay":
            raise EnvironmentFailure(
                f"simulated: {self.recording} has no reply to {messages[-1]['content'][:200]!r} (key {key})"
            )
        reply = await self._complete(request)
        if self.mode == "record":
            await asyncio.to_thread(append_recording, self.recording, key, request, reply)
        return reply

    async def close(self) -> None:
        await self._endpoint.close()

    async def _complete(self, request: dict[str, Any]) -> str:
        if self.url:
            message = await self._endpoint.ask(request)
        else:
            message = message_of(complete(request), "simulated", "the stand-in")
        content = message.get("content")
        if not isinstance(content, str):
            raise EnvironmentFailure(f"simulated: {self.url} replied without text: {content!r:.300}")
        return content


def request_key(request: dict[str, Any]) -> str:
    """Return the key of a recorded request: the hash of its JSON with sorted keys."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]


def append_recording(path: str, key: str, request: dict[str, Any], reply: str) -> None:
    """Add one line to a recording, in one write."""
    line = json.dumps({"key": key, "request": request, "reply": reply}) + "\n"
    with _WRITING, open(path, "a", encoding="utf-8") as file:
        file.write(line)


def read_recording(path: str) -> dict[str, str]:
    """Return the replies of a recording by key. Raises `ConfigError` naming the invalid line."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return {}
    return _read(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _read(path: str, mtime_ns: int, size: int) -> dict[str, str]:
    replies: dict[str, str] = {}
    for number, record in json_lines(path, "env.config.recording"):
        try:
            replies[record["key"]] = record["reply"]
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"env.config.recording: {path}, line {number}: {error!r}") from error
    return replies
