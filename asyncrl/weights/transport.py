"""How files come to the engines, as the publisher sees it. The plain way is a folder that both sides see.

What is optional are extensions: carriers that bring the bytes (`weight_carriers`), and transports that add short forms
of a version to another one's (`weight_forms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from asyncrl.weights.files import WeightFile


class EngineControl(Protocol):
    """The part of an engine a publisher uses."""

    url: str

    async def request(
        self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0
    ) -> dict[str, Any]: ...


class Transport:
    """Engines read files where they were written."""

    brings = False
    """Whether files come to engines that do not see the trainer's folder: they are looked after between two versions,
    and one that does not find a file there is brought it."""

    def written(self, file: WeightFile, before: WeightFile | None) -> WeightFile:
        """Return a file that was just written, with its short forms. before: the newest that was committed."""
        return file

    async def carry(self, file: WeightFile, engines: Sequence[EngineControl]) -> dict[str, str]:
        """Bring a file to engines; return those that did not get it, with the reason. Raises no error of an engine."""
        return {}

    def close(self) -> None:
        """Give up what is kept from one version to the next."""
