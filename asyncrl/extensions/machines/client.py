"""The launcher's client of a node, and a node's client of the launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.extensions.machines.messages import Register, RunFiles, checked
from asyncrl.services.http.client import HttpClient
from asyncrl.types import MAIN_POLICY

SHORT_S = 10.0
PART_BYTES = 8 * 2**20
PART_S = 120.0


class NodeClient:
    """Calls one node. Every call raises `AsyncRLError`: `UnavailableError` where the node does not answer."""

    def __init__(self, url: str, token: str) -> None:
        self._http = HttpClient(url, token, retry_s=0.0)

    async def start(self, message: Mapping[str, Any]) -> int:
        """Start a process; return the number of this start."""
        return int((await self._http.post("/v1/processes", dict(message), SHORT_S, repeat=False))["start"])

    async def end(self, name: str, how: str, wait_s: float) -> None:
        """End a process: "terminate" or "kill"."""
        await self._http.post("/v1/processes/end", {"name": name, "how": how}, wait_s)

    async def report(
        self, logs: Mapping[str, int], measured: Sequence[str], timeout_s: float
    ) -> dict[str, Any]:
        """Return what the node's processes do, and what their logs hold beyond these many bytes. measured: those whose
        CPU time and data are wanted; of one that starts they always are."""
        body = {"logs": dict(logs), "measured": list(measured)}
        return await self._http.post("/v1/report", body, timeout_s)

    async def reach(self, urls: Sequence[str]) -> dict[str, str]:
        """Return the addresses that the node cannot reach, with the reason."""
        return (await self._http.post("/v1/reach", {"urls": list(urls)}, 3 * SHORT_S))["unreachable"]

    async def free_port(self) -> int:
        """Return a port that nothing on the node's machine listens on."""
        return int((await self._http.post("/v1/port", {}, SHORT_S))["port"])

    async def leave(self) -> None:
        """Tell the node that the run is over."""
        await self._http.post("/v1/leave", {}, SHORT_S)

    async def close(self) -> None:
        await self._http.close()


class LauncherClient:
    """Calls the launcher. Every call raises `AsyncRLError`."""

    def __init__(self, url: str, token: str) -> None:
        self._http = HttpClient(url, token, retry_s=0.0)

    async def register(self, node: Register) -> str:
        """Register; return the run that the node is to have, "" while there is none yet."""
        return str((await self._http.post("/v1/nodes", node.model_dump(), SHORT_S))["run"])

    async def run(self) -> RunFiles:
        """Return the run."""
        return checked(RunFiles, await self._http.get("/v1/run", SHORT_S))

    async def fetch(self, name: str, size: int, target: Path, policy: str = MAIN_POLICY) -> None:
        """Fetch a file of a policy's model. One that is there in part is continued."""
        with open(target, "ab") as file:
            while (offset := file.tell()) < size:
                part = {
                    "policy": policy,
                    "name": name,
                    "offset": offset,
                    "size": min(PART_BYTES, size - offset),
                }
                data = (await self._http.post("/v1/file", part, PART_S))["data"]
                if not data:
                    return
                file.write(data)

    async def close(self) -> None:
        await self._http.close()
