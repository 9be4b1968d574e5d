"""Failed and dropped groups of a policy's buffer are told with its name, those of the main policy without one."""

from __future__ import annotations

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.launch.reports.buffer_report import BufferReport
from asyncrl.types import FailureClass, Task
from tests.buffer.factories import group
from tests.launch.test_failures import failed

STEP = 2


def test_both_kinds_of_lines_name_a_further_policy():
    ledger = Ledger(":memory:", LedgerSettings(STEP, 1, 2))
    ledger.add_tasks([Task(f"t{number}", "x") for number in range(100)])
    main, further = BufferReport(STEP), BufferReport(STEP, "keeper")
    for report in (main, further):
        assert report.new_messages(ledger.stats()) == []
    for _ in range(4 * STEP):
        ledger.put(group(ledger.lease("w"), rewards=(0.5, 0.5)))
    said = main.new_messages(ledger.stats())
    assert [line[: line.index(" ", 8)] for line in said] == ["step 0 waits"]
    assert further.new_messages(ledger.stats()) == [f"policy keeper: {line}" for line in said]
    ledger.put(failed(ledger.lease("w"), failure=FailureClass.ENVIRONMENT, error="it broke"))
    first, share = further.new_messages(ledger.stats())
    assert first == "policy keeper: an episode failed (environment): it broke"
    assert share.startswith("policy keeper: failed episodes: ")
