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
            return acceptance._one(acceptance._arguments(command[2:])), ""

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


def test_what_a_part_omits_is_in_its_record_and_what_fails_in_it_does_not_stop_the_rest(
    acceptance, parts, tmp_path, capsys
):
    measure, report = sys.modules["acceptance.measure"], sys.modules["bench.report"]

    def broken():
        yield acceptance_figure(acceptance)
        raise ValueError("no such kernel\nand much more")

    def absent():
        raise acceptance.NotRun("needs 2 GPU(s), 0 found")
        yield

    def part(context):
        """Part."""
        yield report.Omitted("pinned", measure.NEEDS_CUDA)
        yield from measure.tried("absent", absent)
        if context.start_model == "bad":
            yield from measure.tried("broken", broken)
        yield report.Figure("later", 1.0)

    parts(part=part)
    out = tmp_path / "out.json"
    words = ["--json", str(out), "--work", str(tmp_path / "work"), "--model"]
    assert acceptance.main([*words, "good"]) == 0
    found = results(out)["part"]
    omitted = [{"name": "pinned", "reason": "needs CUDA", "failed": False}]
    omitted += [{"name": "absent", "reason": "needs 2 GPU(s), 0 found", "failed": False}]
    assert (found["status"], found["omitted"]) == ("passed", omitted)
    assert "omitted: pinned: needs CUDA" in capsys.readouterr().out
    assert acceptance.main([*words, "bad", "--again"]) == 1
    found = results(out)["part"]
    assert (found["status"], found["reason"]) == ("failed", "broken: ValueError: no such kernel")
    assert found["omitted"][2] == {"name": "broken", "reason": "ValueError: no such kernel", "failed": True}
    assert [figure["name"] for figure in found["figures"]] == ["rate", "later"]


def test_a_rate_is_regained_where_a_window_begins_that_has_nine_tenths_of_it(acceptance):
    rates = sys.modules["acceptance.rates"]
    # 10 tokens every second, none from 5 to 8, then 10 again.
    events = [(float(at), 10) for at in range(1, 16) if not 5 < at < 9]
    assert rates.tokens_between(events, 4.0, 10.0) == 30
    assert rates.regained_s(events, 5.5, 15.0, 10.0, 2.0) == pytest.approx(3.5)
    assert rates.regained_s(events, 1.0, 15.0, 10.0, 2.0) == 0.0
    assert rates.regained_s(events, 5.5, 10.0, 10.0, 2.0) is None


def test_a_curve_has_the_rewards_of_what_came_in_during_each_part_of_the_time(acceptance):
    module = sys.modules["acceptance.learning_curve"]
    times, rewards = (100.0, 101.0, 103.0, 104.5, 107.0, 111.0), (0.0, 1.0, 3.0, 6.0, 12.0, 99.0)
    rows = [
        {"time": at, "buffer/offered_reward_sum": reward, "buffer/offered_episodes": 8 * number,
         "staleness/mean": float(number)}
        for number, (at, reward) in enumerate(zip(times, rewards, strict=True), start=1)
    ]  # fmt: skip
    found = list(module.curve(1, rows, 10.0))
    assert {one.name: one.value for one in found if not hasattr(one, "reason")} == {
        "limit 1: steps": 5.0, "limit 1: a step": 7.0 / 4, "limit 1: staleness": 3.5,
        "limit 1: right answers from 0 to 2 s": 1 / 8, "limit 1: right answers from 2 to 4 s": 2 / 8,
        "limit 1: right answers from 4 to 6 s": 3 / 8, "limit 1: right answers from 6 to 8 s": 6 / 8,
    }  # fmt: skip
    # The last step ended after the time.
    assert [one.name for one in found if hasattr(one, "reason")] == ["limit 1: right answers from 8 to 10 s"]


def test_the_learning_curve_asks_for_its_rows(acceptance, tmp_path, capsys):
    out = tmp_path / "out.json"
    words = ["--json", str(out), "--only", "smollm2_staleness", "--work", str(tmp_path / "work")]
    assert acceptance.main(words) == 0
    assert results(out)["smollm2_staleness"]["reason"] == "needs --data FILE, the rows of SVAMP"
    with pytest.raises(SystemExit):
        acceptance.main([*words, "--data", str(tmp_path / "nothing")])
    assert "there is no such file" in capsys.readouterr().err


def test_a_head_chunk_and_a_form_of_adamw_are_for_a_while(acceptance):
    import torch

    from asyncrl.config import TrainConfig
    from asyncrl.train.engine.optimizers import BUILDERS
    from asyncrl.train.models import token_scores

    phases = sys.modules["acceptance.trainer_phases"]
    before = BUILDERS["adamw"]
    with phases.head_chunk(2**28):
        assert token_scores.logits_at_once(torch.device("cpu")) == 2**28
        assert token_scores.chunk_for(0) == token_scores.chunk_for(2**40) == 2**28
    assert token_scores.logits_at_once(torch.device("cpu")) == 2**26
    named = [("w", torch.nn.Parameter(torch.ones(4)))]
    for fused in (True, False):
        with phases.adamw(fused):
            defaults = BUILDERS["adamw"](named, TrainConfig(), {"lr": 1e-6}).defaults
        assert (defaults["fused"], defaults["foreach"]) == ((True, None) if fused else (None, True))
    assert BUILDERS["adamw"] is before


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
            acceptance._one(acceptance._arguments(command[2:]))
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
