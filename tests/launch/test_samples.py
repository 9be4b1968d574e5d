"""The first samples of a run are shown with prompt, answer, extracted answer and reward, and as text alone."""

import dataclasses

from asyncrl.data.table import TrajectoryTable
from asyncrl.data.transcript import encode_transcript
from asyncrl.launch.reports.samples import FirstSamples, chosen_rows, sample_text, trained_samples
from asyncrl.types import Group, Status, Task, Trajectory
from tests.buffer.factories import trajectory

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is 40 + 2?"},
    {"role": "assistant", "content": "So\nit is 42."},
]
TASK = Task("a.jsonl:7", "dataset", data={"answer": 42})


def played(reward=1.0, messages=MESSAGES, **changes) -> Trajectory:
    made = trajectory(TASK.id, 0, (0,), reward)
    given = {"conversation": encode_transcript(messages, {2: 0}), "success": bool(reward)} | changes
    return dataclasses.replace(made, **{"components": {"math": reward}, "info": {"extracted": "42"}} | given)


def test_a_sample_shows_what_was_asked_answered_taken_and_earned():
    assert sample_text(TASK, played(), "sample 1").splitlines() == [
        "sample 1: a.jsonl:7",
        "  system:       Be short.",
        "  user:         What is 40 + 2?",
        "  answer:       So",
        "                it is 42.",
        "  extracted:    42",
        "  right answer: 42",
        "  reward:       1, success",
    ]


def test_several_components_and_failures_are_said():
    text = sample_text(TASK, played(0.5, components={"math": 0.0, "length": 1.0}, success=None, info={}), "x")
    assert text.splitlines()[-1] == "  reward:       0.5 (math 0, length 1)"
    assert "extracted" not in text
    failed = played(0.0, status=Status.FAILED, error="grader died", success=None)
    assert sample_text(TASK, failed, "x").endswith("[failed: grader died]")


def test_a_long_text_is_cut_in_its_middle_unless_all_is_asked_for():
    long = [*MESSAGES[:2], {"role": "assistant", "content": "a" * 500 + "b" * 500}]
    shown = sample_text(TASK, played(messages=long), "x", 20)
    assert "aaaaaaaaaa [... 980 characters ...] bbbbbbbbbb" in shown
    assert "a" * 500 + "b" * 500 in sample_text(TASK, played(messages=long), "x", 0)


def test_what_a_policy_writes_cannot_move_the_cursor():
    hostile = [*MESSAGES[:2], {"role": "assistant", "content": "\x1b]0;owned\x07"}]
    assert "\x1b" not in sample_text(TASK, played(messages=hostile, info={"extracted": "\x1b[31m"}), "x")


def test_only_the_first_samples_are_shown():
    said: list[str] = []
    shown = FirstSamples(said.append, 3)
    for _ in range(3):
        shown.see(Group("g", TASK, 0, (played(), played())))
    assert [text.splitlines()[0] for text in said] == [f"sample {n}: a.jsonl:7" for n in (1, 2, 3)]


def test_samples_that_were_trained_on_are_read_from_the_runs_files(tmp_path):
    assert list(trained_samples(tmp_path)) == []
    TrajectoryTable(tmp_path / "trajectories").write(1, [Group("g", TASK, 0, (played(), played(0.0)))])
    (first, second) = trained_samples(tmp_path)
    assert first == sample_text(TASK, played(), "sample 1")
    assert second.endswith("0, no success")


def test_the_same_row_twice_is_two_tasks():
    tasks = chosen_rows(iter([TASK, TASK, TASK]), 2)
    assert [task.id for task in tasks] == ["0-a.jsonl:7", "1-a.jsonl:7"]
