"""What `asyncrl eval --suite` says while it plays."""

from types import SimpleNamespace

from asyncrl.extensions.benchmarks import eval_suite


def test_the_time_that_is_left_follows_from_the_rate_after_the_first_task(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(eval_suite.time, "monotonic", lambda: now)
    rows = [{"checkpoint": "other"}] * 3 + [{"checkpoint": "mine"}] * 2
    progress = eval_suite._Progress(SimpleNamespace(rows=rows), SimpleNamespace(samples=2), "mine", 10)
    assert capsys.readouterr().err == "mine: 2 of 20 samples are there\n"

    # The engine took 60 s to start.
    for second in (60.0, 61.0, 62.0, 70.0):
        now = second
        rows += [{"checkpoint": "mine"}] * 2
        progress()
    first, last = capsys.readouterr().err.splitlines()
    assert first == "mine: 4 of 20 samples"
    # 6 samples in 10 s, and 10 to come.
    assert last == "mine: 10 of 20 samples, about 17 s left"
