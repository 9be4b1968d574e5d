"""Find the adapter for each vector by the longest dotted prefix of its name, run it, compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance import adapt_advantages, adapt_data, adapt_losses, adapt_misc, adapt_turns
from tests.conformance.compare import largest_error, unexpected_sizes

Adapter = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], dict[str, Any]]

ADAPTERS: dict[str, Adapter] = {
    **adapt_advantages.ADAPTERS,
    **adapt_turns.ADAPTERS,
    **adapt_losses.ADAPTERS,
    **adapt_misc.ADAPTERS,
    **adapt_data.ADAPTERS,
}


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one vector: `status` is "pass", "fail" or "not implemented"."""

    name: str
    status: str
    largest_error: float = 0.0
    complaints: list[str] = field(default_factory=list)

    def line(self) -> str:
        if self.status == "not implemented":
            return f"not implemented  {self.name}"
        detail = f"  {self.complaints[0]}" if self.complaints else ""
        return f"{self.status}  {self.name}  largest error {self.largest_error:.3g}{detail}"


def find_adapter(name: str) -> Adapter | None:
    """The adapter registered for `name` or for its longest dotted prefix."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        adapter = ADAPTERS.get(".".join(parts[:end]))
        if adapter is not None:
            return adapter
    return None


def run_vector(vector: dict[str, Any]) -> Result:
    """Run one vector in float64. An exception in the library is a failure of that vector only."""
    adapter = find_adapter(vector["name"])
    if adapter is None:
        return Result(vector["name"], "not implemented")
    expected = vector["expected"]
    try:
        actual = adapter(vector["inputs"], vector.get("params") or {}, expected)
        worst, complaints = largest_error(
            expected, actual, vector.get("atol", 1e-12), vector.get("rtol", 1e-9)
        )
        complaints += unexpected_sizes(expected, actual)
    except Exception as error:
        return Result(vector["name"], "fail", float("inf"), [f"{type(error).__name__}: {error}"])
    return Result(vector["name"], "fail" if complaints else "pass", worst, complaints)


def run_file(path: Path) -> list[Result]:
    """Run every vector of a file: a JSON list, or an object with a `vectors` list."""
    document = json.loads(path.read_text(encoding="utf-8"))
    vectors = document["vectors"] if isinstance(document, dict) else document
    return [run_vector(vector) for vector in vectors]


def as_json(results: list[Result]) -> str:
    return json.dumps([asdict(result) for result in results], indent=1)
