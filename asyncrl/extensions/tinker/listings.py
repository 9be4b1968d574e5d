"""What clients and people ask of the ledger: pages of lists, and what has been used."""

from __future__ import annotations

from typing import Any, NamedTuple

from asyncrl.clock import stamp_s
from asyncrl.extensions.tinker.ledger import DAY_S, Ledger
from asyncrl.extensions.tinker.tables import Checkpoint, PolicyRecord, checkpoint_of, policy_of


class Page(NamedTuple):
    """Which part of a list: newest first, of one client's or, with "", of all."""

    client: str
    limit: int
    offset: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The values of LIMIT and OFFSET."""
        most = 2**62
        return min(max(0, self.limit), most), min(max(0, self.offset), most)


class Usage(NamedTuple):
    """Tokens of one day."""

    trained: int
    sampled: int


class Listings:
    """Reads a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def policies(self, page: Page) -> tuple[list[PolicyRecord], int]:
        """Return a page of policies, and how many there are."""
        rows, total = self._page("policies", "client = ?", "created", page)
        return [policy_of(row) for row in rows], total

    def sessions(self, page: Page) -> list[str]:
        """Return a page of sessions."""
        return [row["id"] for row in self._page("sessions", "client = ?", "created", page)[0]]

    def checkpoints(self, page: Page) -> tuple[list[Checkpoint], int]:
        """Return a page of checkpoints, and how many there are."""
        own = "policy IN (SELECT id FROM policies WHERE client = ?)"
        rows, total = self._page("checkpoints", own, "created DESC, rowid", page)
        return [checkpoint_of(row) for row in rows], total

    def _page(self, table: str, own: str, order: str, page: Page) -> tuple[list[Any], int]:
        where, values = (f"WHERE {own}", (page.client,)) if page.client else ("", ())
        rows = self.ledger.rows(
            f"SELECT * FROM {table} {where} ORDER BY {order} DESC LIMIT ? OFFSET ?", (*values, *page.bounds)
        )
        return rows, self.ledger.count(f"SELECT COUNT(*) FROM {table} {where}", values)

    def newest(self, policy: str, kind: str) -> Checkpoint | None:
        """Return a policy's newest checkpoint of a kind."""
        row = self.ledger.row(
            "SELECT * FROM checkpoints WHERE policy = ? AND kind = ? ORDER BY created DESC, rowid DESC LIMIT 1",
            (policy, kind),
        )
        return None if row is None else checkpoint_of(row)

    def of_session(self, table: str, session: str) -> list[str]:
        """Return a session's policies, or its samplers."""
        found = self.ledger.rows(
            f"SELECT id FROM {table} WHERE session = ? ORDER BY created DESC, rowid DESC", (session,)
        )
        return [row["id"] for row in found]

    def in_flight(self, client: str) -> int:
        """Return how many requests of a client have no answer yet."""
        return self.ledger.count(
            "SELECT COUNT(*) FROM requests r JOIN sessions s ON r.owner >= s.id || ':' AND r.owner < s.id || ';' "
            "WHERE r.answer IS NULL AND s.client = ?",
            (client,),
        )

    def trained_at_once(self, client: str) -> int:
        """Return how many policies a client has, with those that are to be made."""
        return self.ledger.count(
            "SELECT COUNT(*) FROM policies WHERE removed IS NULL AND client = ?", (client,)
        ) + self.ledger.count(
            "SELECT COUNT(*) FROM requests r JOIN sessions s ON r.owner >= s.id || ':' AND r.owner < s.id || ';' "
            "WHERE r.answer IS NULL AND r.kind = 'create' AND s.client = ?",
            (client,),
        )

    def today(self, client: str) -> Usage:
        """Return what a client has used since 00:00 UTC."""
        row = self.ledger.row(
            "SELECT trained, sampled FROM usage WHERE client = ? AND day = ?", (client, stamp_s() // DAY_S)
        )
        return Usage(0, 0) if row is None else Usage(row["trained"], row["sampled"])

    def by_client(self) -> dict[str, dict[str, int]]:
        """Return of each client, by its name, its sessions and policies now and the tokens that it has ever used."""
        found: dict[str, dict[str, int]] = {}
        for key, query in _BY_CLIENT.items():
            for row in self.ledger.rows(query):
                counts = found.setdefault(row["client"], dict.fromkeys(_BY_CLIENT, 0))
                counts[key] = row["number"]
        return found


_BY_CLIENT = {
    "sessions": "SELECT client, COUNT(*) AS number FROM sessions WHERE finished IS NULL GROUP BY client",
    "policies": "SELECT client, COUNT(*) AS number FROM policies WHERE removed IS NULL GROUP BY client",
    "steps": "SELECT client, SUM(steps) AS number FROM usage GROUP BY client",
    "tokens_trained": "SELECT client, SUM(trained) AS number FROM usage GROUP BY client",
    "tokens_sampled": "SELECT client, SUM(sampled) AS number FROM usage GROUP BY client",
}
