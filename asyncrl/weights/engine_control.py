"""What the trainer's side asks engines by."""

from __future__ import annotations

from typing import Any, Protocol


class EngineControl(Protocol):
    """The part of an engine a publisher uses."""

    url: str

    async def request(
        self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0
    ) -> dict[str, Any]: ...
