"""Progress is told of what takes long: how much, at which rate, and how long the rest takes."""

import io
import re
import time

import pytest

from asyncrl import progress as module
from asyncrl.progress import Progress, elapsing, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_what_ends_soon_is_not_spoken_of(clock):
    stream = io.StringIO()
    told = Progress("reading", 10, "rows", stream)
    for _ in range(10):
        clock.now += 0.4
        told.advance()
    told.end()
    assert stream.getvalue() == ""


def test_a_log_gets_lines_with_rate_and_time_left_ever_more_seldom(clock):
    stream = io.StringIO()
    told = Progress("playing tasks", 400, "tasks", stream)
    for _ in range(200):
        clock.now += 1
        told.advance()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "playing tasks: 5 of 400 tasks, 1/s, about 395 s left".replace("395 s", "6 min 35 s")
    assert [int(re.search(r": (\d+)", line)[1]) for line in lines] == [5, 15, 35, 75, 135, 195]
    told.end()
    assert stream.getvalue().splitlines()[-1] == "playing tasks: 200 tasks in 3 min 20 s"


def test_what_comes_before_the_first_of_it_is_no_part_of_the_rate(clock):
    told = Progress("playing tasks", 11, "tasks", io.StringIO())
    clock.now += 100
    assert told.line(clock.now) == "playing tasks: 0 of 11 tasks, since 100 s"
    told.advance()
    clock.now += 50
    told.advance(5)
    assert told.line(clock.now) == "playing tasks: 6 of 11 tasks, 0.1/s, about 50 s left"
    told.note = "3 running"
    assert told.line(clock.now).endswith("left, 3 running")


def test_what_cannot_be_counted_says_how_long_it_takes(clock):
    stream = io.StringIO()
    told = Progress("loading", stream=stream)
    clock.now += 7
    told.advance(0)
    clock.now += 5000
    told.end()
    assert stream.getvalue() == "loading: 7 s\nloading: in 83 min 27 s\n"


def test_a_terminal_has_one_line_that_is_written_anew(clock):
    stream = Terminal()
    told = Progress("reading", 100, "rows", stream)
    for _ in range(12):
        clock.now += 1
        told.advance()
    told.end()
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert written.count("\r\033[K") == 9
    assert written.endswith("\r\033[Kreading: 12 rows in 12 s\n")


def test_other_lines_do_not_mix_with_that_of_a_phase(clock):
    stream = Terminal()
    told = Progress("reading", 100, "rows", stream)
    clock.now += 6
    told.advance(6)
    module.clear_line()
    assert stream.getvalue().endswith("since 6 s\r\033[K")
    module.clear_line()
    told.end()
    module.clear_line()
    assert stream.getvalue().endswith("\r\033[Kreading: 6 rows in 6 s\n")


def test_a_total_that_is_not_known_is_not_told(clock):
    told = Progress("reading", unit="rows", stream=io.StringIO())
    told.advance()
    clock.now += 10
    told.advance(10)
    assert told.line(clock.now) == "reading: 11 rows, 1/s"


def test_bodies_are_told_of_until_they_end(clock, monkeypatch, capsys):
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    monkeypatch.setattr(module, "TERMINAL_EVERY_S", 0.01)
    with progress("reading", 3, "rows") as advance:
        advance(3)
    assert capsys.readouterr().err.splitlines()[-1] == "reading: 3 rows in 0 s"
    with elapsing("loading"):
        while "loading: 0 s" not in (said := capsys.readouterr().err):
            assert said == ""
            time.sleep(0.01)
    assert capsys.readouterr().err.splitlines()[-1] == "loading: in 0 s"
