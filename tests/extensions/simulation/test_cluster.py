"""The real ledger, rollout loop and router on a virtual clock: what they promise holds, whatever dies."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, DeadlineError
from asyncrl.extensions.simulation.cluster import Death, simulate
from asyncrl.extensions.simulation.costs import Costs, EngineCosts, SharedCores, TrainerCosts
from asyncrl.extensions.simulation.workload import DrawnWorkload, EpisodeShape, RecordedWorkload, TurnShape

SCHEDULES = ("synchronous", "periodic", "one_step_off", "asynchronous", "partial")
COSTS = Costs(
    EngineCosts(iteration_s=0.01, sequence_s=1e-4, prefill_token_s=1e-4, max_num_seqs=16),
    TrainerCosts(token_s=1e-3, step_s=0.5, publish_s=0.2, swap_s=0.1),
)
EVEN = DrawnWorkload(turns=2, prompt_tokens=10, sampled_tokens=20, sampled_sigma=0.0, max_sampled_tokens=64)
HEAVY = DrawnWorkload(
    turns=3,
    prompt_tokens=10,
    sampled_tokens=20,
    max_sampled_tokens=64,
    tool_s=0.5,
    tool_sigma=1.5,
    no_signal=0.2,
)


def recipe(schedule="partial", staleness=2, **sections):
    limit = {"max_staleness": staleness} if schedule in ("asynchronous", "partial") else {}
    given = {
        "model": {"path": "sft"},
        "env": {"name": "gridworld"},
        "rollout": {"group_size": 4, "workers": 2, "lease_s": 30.0},
        "buffer": {"groups_per_step": 4, **limit},
        "train": {"schedule": schedule, "num_steps": 6, "checkpoint_every": 2},
        "algo": {"preset": "grpo"},
    }
    return parse_config(
        {name: {**given.get(name, {}), **sections.get(name, {})} for name in given | sections}
    )


def test_a_synchronous_step_takes_what_its_parts_take():
    costs = Costs(
        EngineCosts(iteration_s=0.1), TrainerCosts(token_s=0.01, step_s=1.0, publish_s=2.0, swap_s=0.5)
    )
    outcome = simulate(recipe("synchronous"), costs, EVEN, engines=1, steps=3)
    # 2 turns of 20 tokens at 0.1 s; 16 episodes of 10 prompt and 40 sampled tokens at 0.01 s; publishing.
    generation, training, publishing = 4.0, 16 * 50 * 0.01 + 1.0, 2.5
    assert outcome.step_s == pytest.approx(generation + training + publishing, rel=0.01)
    assert outcome.trainer.busy == pytest.approx(training / outcome.step_s, rel=0.01)
    assert outcome.engines.busy == pytest.approx(generation / outcome.step_s, rel=0.01)
    assert outcome.mean_batch == pytest.approx(16)
    assert (outcome.staleness_max, outcome.counts["trained"]) == (0, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "oldest"), [*zip(SCHEDULES, (0, 0, 1, 2, 2), strict=True)])
def test_no_schedule_exceeds_its_staleness_limit_and_each_group_is_trained_once(schedule, oldest):
    outcome = simulate(recipe(schedule), COSTS, HEAVY, engines=2)
    assert [step.groups for step in outcome.steps] == [4] * 6
    assert outcome.counts["trained"] == 24
    assert outcome.counts["dropped"] > 0
    assert outcome.staleness_max <= oldest


@pytest.mark.slow
def test_generation_beside_training_is_faster_than_by_turns():
    rates = {name: simulate(recipe(name), COSTS, HEAVY, engines=1).groups_per_hour for name in SCHEDULES}
    assert rates["synchronous"] < rates["one_step_off"] < rates["partial"]


def test_a_policy_that_trains_on_more_groups_a_step_plays_like_one_of_more_steps():
    shapes = [[EpisodeShape((TurnShape(10, length, 0.0),), 0.0)] * 4 for length in [40] * 32 + [10] * 32]
    # Episodes become short after 128 of them.
    recorded = RecordedWorkload(shapes, [4 * number for number in range(64)])

    def lengths(groups, steps):
        config = recipe("synchronous", buffer={"groups_per_step": groups})
        outcome = simulate(config, COSTS, recorded, engines=1, steps=steps)
        return [step.sampled_tokens / step.groups / 4 for step in outcome.steps]

    few, many = lengths(4, 11), lengths(8, 6)
    assert [few[6], few[10]] == [many[3], many[5]] == [40, 10]


@pytest.mark.slow
def test_two_runs_are_the_same_to_the_last_digit():
    deaths = [Death(3.0, "engine", 1, 5.0), Death(6.0, "worker", 0, 2.0)]
    first, second = (simulate(recipe(), COSTS, HEAVY, engines=2, deaths=deaths) for _ in range(2))
    assert first == second


def test_engines_slow_down_while_a_trainer_takes_their_cores():
    engine = EngineCosts(iteration_s=0.05, max_num_seqs=16)
    cores = SharedCores(cores=2, trainer=1, generation=2)
    alone, together = (
        simulate(recipe(), Costs(engine, COSTS.trainer, shared), EVEN, engines=1).tokens_per_s
        for shared in (SharedCores(), cores)
    )
    # The trainer computes for 0.7 s of each second or so, in which generation has one of its two cores.
    assert 0.5 * alone < together < 0.8 * alone


def test_engines_and_trainer_that_share_gpus_never_work_at_once():
    by_turns = Costs(COSTS.engine, COSTS.trainer, by_turns=True, turn_s=1.0)
    apart, turns = (
        simulate(recipe("synchronous"), costs, EVEN, engines=1).step_s for costs in (COSTS, by_turns)
    )
    assert turns == pytest.approx(apart + 2.0, rel=0.01)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    schedule=st.sampled_from(SCHEDULES),
    deaths=st.lists(
        st.builds(
            Death,
            at_s=st.floats(0.1, 20.0),
            role=st.sampled_from(["worker", "engine", "trainer"]),
            index=st.just(0),
            down_s=st.floats(0.1, 10.0),
        ),
        max_size=3,
        unique_by=lambda death: death.role,
    ),
)
def test_whatever_dies_every_step_is_trained_within_the_limit(schedule, deaths):
    outcome = simulate(recipe(schedule), COSTS, HEAVY, engines=2, deaths=deaths)
    assert [step.version for step in outcome.steps] == [1, 2, 3, 4, 5, 6]
    assert all(step.groups == 4 for step in outcome.steps)
    assert outcome.counts["trained"] == 24
    assert outcome.staleness_max <= {"synchronous": 0, "periodic": 0, "one_step_off": 1}.get(schedule, 2)


def test_a_run_whose_engines_stay_away_ends_as_a_real_one_does():
    config = recipe(buffer={"groups_per_step": 4, "wait_timeout_s": 50.0})
    deaths = [Death(1.0, "engine", 0, 10_000.0)]
    with pytest.raises(DeadlineError, match=r"no batch within buffer\.wait_timeout_s=50"):
        simulate(config, COSTS, HEAVY, engines=1, deaths=deaths)


@pytest.mark.parametrize(("role", "index"), [("engine", 2), ("node", 2)])
def test_a_death_of_what_is_not_there_is_refused(role, index):
    with pytest.raises(ConfigError, match=f"there is no {role} {index}"):
        simulate(recipe(), COSTS, EVEN, engines=2, deaths=[Death(1.0, role, index)])
