"""The acceptance run: its parts are kept apart, what has passed is kept, and its cheapest part is real."""

import json
import sys
from pathlib import Path

import psutil
import pytest

from tests.scripts import load_script
from tests.waiting import wait_until

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def acceptance(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return load_script("gpu_acceptance")


@pytest.fixture
def parts(acceptance, monkeypatch):
    """Replace the registered parts, in this process."""

    def of(**functions):
        monkeypatch.setattr(acceptance, "PARTS", functions)

        def in_process(command, timeout_s):
            name, work, result = command[3], Path(command[5]), Path(command[7])
            return acceptance._one(name, work, result), ""

        monkeypatch.setattr(acceptance, "run_part", in_process)

    return of


def results(path):
    return {one["name"]: one for one in json.loads(path.read_text())["parts"]}


def test_a_part_that_fails_does_not_stop_the_others_and_what_has_passed_is_not_run_again(
    acceptance, parts, tmp_path, capsys
):
    runs = []

    def good(context):
        """Good."""
        runs.append("good")
        return [acceptance_figure(acceptance)]

    def bad(context):
        """Bad."""
        runs.append("bad")
        raise AssertionError("too slow")

    def elsewhere(context):
        """Elsewhere."""
        raise acceptance.NotRun("needs 2 GPU(s), 0 found")

    parts(bad=bad, elsewhere=elsewhere, good=good)
    out = tmp_path / "out.json"
    words = ["--json", str(out), "--work", str(tmp_path / "work")]
    assert acceptance.main(words) == 1
    found = results(out)
    assert {name: one["status"] for name, one in found.items()} == {
        "bad": "failed", "elsewhere": "not run", "good": "passed",
    }  # fmt: skip
    assert found["bad"]["reason"] == "AssertionError: too slow"
    assert found["elsewhere"]["reason"] == "needs 2 GPU(s), 0 found"
    assert found["good"]["figures"] == [{"name": "rate", "value": 2.5, "unit": "GB/s"}]
    assert found["good"]["machine"] and found["good"]["date"]
    assert acceptance.main(words) == 1 and runs == ["bad", "good", "bad"]
    assert acceptance.main([*words, "--only", "good", "--again"]) == 1 and runs[-1] == "good"
    assert acceptance.main([*words, "--only", "nothing"]) == 2
    assert "allowed: bad, elsewhere, good" in capsys.readouterr().err


def acceptance_figure(acceptance):
    figure = sys.modules["bench.report"].Figure
    return figure("rate", 2.5, "GB/s")


def test_the_exit_code_is_0_where_nothing_failed_and_the_page_holds_the_table(acceptance, parts, tmp_path):
    parts(good=lambda context: [acceptance_figure(acceptance)])
    acceptance.PARTS["good"].__doc__ = "Good."
    page = tmp_path / "page.md"
    page.write_text(f"before\n{acceptance.BEGIN}\nold\n{acceptance.END}\nafter\n")
    words = ["--json", str(tmp_path / "out.json"), "--work", str(tmp_path / "work"), "--page", str(page)]
    assert acceptance.main(words) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| good | passed" in text and "rate 2.5 GB/s |" in text


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_with_its_children(acceptance, tmp_path):
    context = sys.modules["acceptance.context"]
    program = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); "
        "open(sys.argv[1], 'w').write(str(child.pid)); time.sleep(600)"
    )
    code, _ = context.run_part([sys.executable, "-c", program, str(tmp_path / "pid")], timeout_s=5.0)
    assert code is None
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_a_part_runs_as_a_process_of_its_own(acceptance, tmp_path):
    out = tmp_path / "out.json"
    # On a machine that follows the lock it passes; on another it says what differs.
    acceptance.main(["--json", str(out), "--only", "placement_split", "--work", str(tmp_path / "work")])
    (found,) = results(out).values()
    assert found["status"] in ("not run", "passed") and found["wall_s"] > 0


def test_every_part_says_what_it_checks_and_is_on_the_page(acceptance):
    page = (SCRIPTS.parent / "docs" / "performance.md").read_text()
    for name, part in acceptance.PARTS.items():
        assert part.__doc__ and f"`{name}`" in page


def test_the_short_run_has_nine_phases_for_ten_minutes(acceptance):
    limits = [limit_s for limit_s, _ in acceptance.PHASES.values()]
    assert (len(limits), sum(limits)) == (9, 590)


def test_a_phase_whose_time_is_up_keeps_the_figures_it_has(acceptance, tmp_path, monkeypatch, capsys):
    def slow(context):
        """Slow."""
        yield acceptance_figure(acceptance)
        raise KeyboardInterrupt

    limits = []

    def interrupted(command, timeout_s):
        limits.append(timeout_s)
        with pytest.raises(KeyboardInterrupt):
            acceptance._one(command[3], Path(command[5]), Path(command[7]))
        return None, "its last words"

    monkeypatch.setattr(acceptance, "PHASES", {"slow": (20, slow)})
    cut_short = (acceptance.LEAST_S + 20) / 2
    monkeypatch.setattr(acceptance, "run_part", interrupted)
    out = tmp_path / "short.json"
    assert acceptance.main(["--short", "--json", str(out), "--work", str(tmp_path / "work")]) == 1
    found = results(out)["slow"]
    assert (found["status"], found["reason"]) == ("failed", "not finished within 20 s: its last words")
    assert len(found["figures"]) == 1
    # Less than its limit is left of all the time; then there is none left to begin it; a CPU's times say nothing.
    again = ["--short", "--again", "--json", str(out), "--work", str(tmp_path / "work"), "--within-s"]
    acceptance.main([*again, str(cut_short + acceptance.STOP_S)])
    assert acceptance.main([*again, "1"]) == 0
    assert results(out)["slow"]["status"] == "not run"
    assert results(out)["slow"]["reason"] == "the time of --within-s was up"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    acceptance.main([*again, "inf", "--device", "cpu"])
    assert [limits[0], limits[2]] == [20, acceptance.PART_S] and len(limits) == 3
    assert limits[1] == pytest.approx(cut_short, abs=2)


@pytest.mark.slow
def test_the_cheapest_phases_run_on_a_cpu(acceptance, tmp_path):
    out = tmp_path / "short.json"
    words = ["--short", "--device", "cpu", "--only", "copy_rates", "publish_breakdown", "--json", str(out)]
    assert acceptance.main([*words, "--work", str(tmp_path / "work")]) == 0
    found = results(out)
    rates = {figure["name"]: figure["value"] for figure in found["copy_rates"]["figures"]}
    assert rates.keys() >= {
        "to the host, fresh pages",
        "to the host, reused pages",
        "to the host, shared memory",
    }
    written = {figure["name"]: figure["value"] for figure in found["publish_breakdown"]["figures"]}
    assert written["0.6B: version"] > 0 and written["0.6B: written in all"] > 0
