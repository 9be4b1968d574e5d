"""One run in words and numbers."""

from asyncrl.extensions.monitor.describe import describe_run
from asyncrl.run.ledger_view import read_ledger
from tests.run.folders import make_run


def test_a_run_is_described_with_its_ledger_and_its_logs(tmp_path):
    folder = make_run(tmp_path / "run")
    described = describe_run("run", folder)
    assert described["logs"] == [{"name": "engine-0", "bytes": 18}]
    assert described["ledger"] == read_ledger(folder)
    assert described["ledger"]["groups"]


def test_a_run_without_a_ledger_or_with_a_damaged_one_is_described(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "ledger.sqlite").write_bytes(b"no database" * 100)
    assert describe_run("run", folder)["ledger"]["failures"] == []
    (folder / "ledger.sqlite").unlink()
    assert describe_run("run", folder)["ledger"]["groups"] == []
