"""Every way to share GPUs out is tried, and the fastest is written as keys of a recipe."""

import json

import pytest

from asyncrl.cli import main
from asyncrl.config import load_config
from asyncrl.extensions.planning.load import load_for_gpus
from asyncrl.extensions.simulation.hardware import gpu_named
from asyncrl.extensions.simulation.search import (
    SIMULATED,
    estimate,
    layouts,
    likeliest,
    try_layout,
    with_schedule,
)
from asyncrl.extensions.simulation.workload import DrawnWorkload
from asyncrl.types import Task
from tests.extensions.planning.recipes import SMALL


def test_layouts_use_all_gpus_under_each_schedule():
    found = list(layouts(4))
    assert all(layout.gpus == 4 for layout in found)
    split = {(one.trainer_gpus, one.engines, one.tensor_parallel) for one in found if not one.by_turns}
    assert split == {(1, 3, 1), (2, 2, 1), (3, 1, 1), (2, 1, 2)}
    assert {(one.engines, one.tensor_parallel) for one in found if one.by_turns} == {(4, 1), (2, 2), (1, 4)}


def test_a_layout_as_keys_is_a_recipe_that_is_accepted():
    layout = next(one for one in layouts(4) if one.engines == 3 and one.schedule == "partial")
    config = load_config(SMALL, [*layout.changes(), "train.zero_stage=1"])
    assert (config.train.ranks, config.engine.count) == (1, 3)
    assert (config.placement.trainer, config.placement.engines) == ([0], [1, 2, 3])


@pytest.mark.parametrize(("schedule", "limit"), [("synchronous", 0), ("one_step_off", 1), ("partial", 4)])
def test_another_schedule_brings_its_staleness_limit(schedule, limit):
    config = load_config("gridworld_grpo", ["buffer.max_staleness=4"])
    assert with_schedule(config, schedule).buffer.max_staleness == limit


def test_the_fastest_of_all_layouts_is_among_those_that_are_simulated():
    words = [
        "buffer.groups_per_step=4",
        "engine.max_num_seqs=16",
        "model.path=Qwen/Qwen3-4B",
        "train.zero_stage=3",
    ]
    config, gpu = load_for_gpus(SMALL, words), gpu_named("h100")
    workload = DrawnWorkload(turns=1, prompt_tokens=500, sampled_tokens=500, max_sampled_tokens=2048)
    chosen = likeliest(config, gpu, 4, workload)
    everything = likeliest(config, gpu, 4, workload, limit=100)
    assert len(chosen) == SIMULATED < len(everything)
    rates = {}
    for layout, costs in everything:
        outcome = try_layout(with_schedule(config, layout.schedule), costs, workload, layout.engines, 4)
        rates[layout] = outcome.groups_per_hour if outcome else 0.0
    best = max(rates, key=rates.__getitem__)
    assert best in [layout for layout, _ in chosen]
    assert {layout.schedule for layout, _ in chosen} == {layout.schedule for layout, _ in everything}


EIGHT_H100 = [
    "engine.max_model_len=9216",
    "rollout.max_tokens_per_turn=8192",
    "rollout.group_size=8",
    "buffer.groups_per_step=64",
]
"""512 answers of up to 8,192 tokens of Qwen3-4B a step."""


@pytest.mark.slow
def test_what_is_recommended_for_4b_on_eight_gpus_is_what_a_practitioner_would_try():
    """Five GPUs generate while three train; all by turns would wait for the longest answer of each step."""
    config, gpu = load_for_gpus("dapo_4b_8x80gb", EIGHT_H100), gpu_named("h100")
    workload = DrawnWorkload(turns=1, prompt_tokens=500, sampled_tokens=2000, max_sampled_tokens=8192)
    sample = [workload.group(Task(f"t{number}", ""), 8) for number in range(64)]
    steps = {}
    for layout, costs in likeliest(config, gpu, 8, workload):
        name = (layout.schedule, layout.trainer_gpus, layout.engines)
        if name in (("partial", 3, 5), ("partial", 4, 4), ("synchronous", 8, layout.engines)):
            planned = with_schedule(config, layout.schedule)
            outcome = try_layout(planned, costs, workload, layout.engines, 3)
            steps[name[:2]] = outcome.step_s
            assert estimate(planned, layout, costs, sample) == pytest.approx(outcome.step_s, rel=0.25)
    assert steps["partial", 3] < steps["partial", 4] < steps["synchronous", 8]
    assert 50 < steps["partial", 3] < 65


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_all_layouts(tmp_path, capsys):
    out = tmp_path / "plan.json"
    words = [SMALL, "--gpus", "2", "--steps", "3", "--json", str(out), "buffer.groups_per_step=4"]
    assert main(["plan", *words]) == 0
    printed = capsys.readouterr().out
    rows = json.loads(out.read_text())
    assert len(rows) == len(list(layouts(2)))
    rates = [row["groups_per_hour"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert f"fastest: {rows[0]['layout']}" in printed
    assert all(f"  {change}" in printed for change in rows[0]["changes"])
    assert sum(rows[0]["trainer"]["idle"].values()) + rows[0]["trainer"]["busy"] == pytest.approx(1, abs=0.02)
    assert sum(rows[0]["engines"]["idle"].values()) + rows[0]["engines"]["busy"] == pytest.approx(1, abs=0.02)


def test_the_command_says_nothing_of_workers_that_a_simulation_ends(capsys, caplog):
    words = [SMALL, "--gpus", "1", "--device", "h100", "--steps", "2", "rollout.group_size=2"]
    assert main(["plan", "run", *words]) == 0
    # A command without a logger of its own has warnings printed on stderr.
    assert caplog.messages == []
    assert capsys.readouterr().err == "synchronous: trainer 1, 1 engine(s) of 1\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "0"], "--gpus must be 1 or more"),
        (["--device", "abacus"], "--device: must be one of"),
        (["--gpus", "1", "model.path=Qwen/Qwen3-32B"], "fits no split of 1 such GPUs"),
        (["--calibrate", "nowhere"], "nowhere: is no run"),
    ],
)
def test_what_cannot_be_planned_is_said(words, message, capsys):
    assert main(["plan", "run", SMALL, *words]) == 2
    assert message in capsys.readouterr().err
