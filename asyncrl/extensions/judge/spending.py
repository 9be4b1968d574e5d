"""What a run's workers have asked of its judge, in the ledger: one count, however often processes start again.

Each process that asks has a row with all that it has spent, so that what is told twice counts once. A rollback of the
run takes nothing back: the requests were sent.
"""

from __future__ import annotations

from functools import partial

from asyncrl.buffer.hooks.configured import LeaseContext
from asyncrl.buffer.lease_hooks import HookFactory, LeaseHook
from asyncrl.buffer.ledger import Ledger
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.store import Store
from asyncrl.errors import InputError
from asyncrl.extensions.judge.budget import over
from asyncrl.extensions.judge.settings import JudgeConfig

TABLE = (
    "CREATE TABLE IF NOT EXISTS judge_spending ("
    "client TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL)"
)


class Spending(LeaseHook):
    """See the module. Its methods run inside a transaction of their caller."""

    def __init__(self, store: Store, settings: LedgerSettings, judge: JudgeConfig) -> None:
        self.store = store
        self.judge = judge
        store.execute(TABLE)

    def report(self, client: str, requests: int, tokens: int) -> str:
        """Take in what a process has spent so far, with the requests that it is about to send.

        Return why it may send no more than before, "" where it may. Tokens are counted either way.
        """
        row = self.store.row("SELECT requests, tokens FROM judge_spending WHERE client = ?", client)
        before, known = row or (0, 0)
        self._save(client, before, max(known, tokens))
        if requests <= before:
            return ""
        all_requests, all_tokens = self.spent()
        # One at a time: what may follow one request fewer.
        if why := over(self.judge, all_requests + requests - before - 1, all_tokens):
            return why
        self._save(client, requests, max(known, tokens))
        return ""

    def spent(self) -> tuple[int, int]:
        """Return the requests and tokens of the run."""
        row = self.store.row(
            "SELECT COALESCE(SUM(requests), 0), COALESCE(SUM(tokens), 0) FROM judge_spending"
        )
        assert row is not None
        return int(row[0]), int(row[1])

    def stats(self) -> dict[str, float]:
        """See `LeaseHook`."""
        requests, tokens = self.spent()
        return {"judge_requests": requests, "judge_tokens": tokens}

    def _save(self, client: str, requests: int, tokens: int) -> None:
        self.store.execute(
            "INSERT OR REPLACE INTO judge_spending VALUES (?, ?, ?)", (client, requests, tokens)
        )


def counting(context: LeaseContext) -> HookFactory:
    """Return what makes the hook of a run whose judge has a budget."""
    return partial(Spending, judge=context.config.section(JudgeConfig))


def report_spending(ledger: Ledger, client: str, requests: int, tokens: int) -> str:
    """`Spending.report` of a ledger. Raises `InputError` where it counts none."""
    spending = ledger.hook(Spending)
    if spending is None:
        raise InputError("this run has no judge with a budget")
    with ledger.batch():
        return spending.report(client, requests, tokens)
