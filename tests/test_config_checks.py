"""Recipes whose objective lacks something are refused before anything starts; every preset has a recipe."""

import re
import subprocess
import sys

import pytest

from asyncrl.algo.presets import known_presets
from asyncrl.config import parse_config
from asyncrl.config_checks import check_objective
from asyncrl.conflicts.between import check_policy_objectives
from asyncrl.errors import ConfigError
from asyncrl.extensions.league.members import minimax, most_members, population
from asyncrl.launch.checks.check import check_recipe

TEACHER = {"path": "teacher"}


def recipe(algo, **sections):
    return parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, "algo": algo} | sections)


@pytest.mark.parametrize(
    ("algo", "sections", "message"),
    [
        ({"preset": "opd"}, {}, "teacher.path: this objective needs a teacher"),
        (
            {"preset": "ppo", "value": {"trunk": "shared", "steps": 2}},
            {},
            "algo.value.steps: must be 1 for algo.value.trunk='shared', which learns with the policy, got 2",
        ),
        (
            {"preset": "grpo", "advantage": {"name": "spo"}},
            {"train": {"complete_groups": True}, "curriculum": {"name": "vade"}},
            "train.complete_groups: must be false for an objective that tracks the rewards of prompts or roles",
        ),
        (
            {"preset": "opd_full"},
            {"teacher": {"path": "http://t"}},
            "whole distribution, which no server returns",
        ),
        (
            {"preset": "opd"},
            {"teacher": {"path": "http://t"}, "rollout": {"temperature": 0.5}},
            r"teacher.path: .* rollout.temperature must be 1, got 0.5",
        ),
        (
            {"preset": "sdpo"},
            {"teacher": {"path": "self"}, "rollout": {"group_size": 1}},
            "rollout.group_size: must be above 1 for teacher.path='self'",
        ),
        (
            {"preset": "sdpo"},
            {"teacher": {"path": "self"}, "train": {"zero_stage": 3}},
            "train.zero_stage: must be below 3 where teacher.path='self'",
        ),
        (
            {"preset": "sat"},
            {"reference": {"path": "http://r", "refresh_every": 5}},
            "reference.refresh_every: a served reference cannot be refreshed",
        ),
        (
            {"preset": "grpo", "staleness_control": {"enabled": True, "minimum": 3}},
            {},
            "staleness_control.minimum: must be at most buffer.max_staleness=1, got 3",
        ),
        (
            {"preset": "grpo", "staleness_control": {"enabled": True, "low_ess": 0.8}},
            {},
            "staleness_control.low_ess: must be below high_ess=0.7, got 0.8",
        ),
        (
            {"preset": "vcpo", "advantage": {"score": "gradient"}},
            {"train": {"zero_stage": 3}},
            "needs train.zero_stage below 3",
        ),
        (
            {"preset": "grpo", "staleness_control": {"enabled": True}},
            {"train": {"schedule": "one_step_off"}},
            "staleness_control.enabled: must be false under train.schedule='one_step_off'",
        ),
        (
            {"preset": "dapo"},
            {"rollout": {"group_size": 1}},
            "rollout.group_size: must be above 1 with algo.advantage.name='grpo', which compares the episodes",
        ),
        (
            {"preset": "grpo"},
            {"rollout": {"branches": 8}},
            "rollout.branches: must be below rollout.group_size=8, got 8",
        ),
        (
            {"preset": "grpo"},
            {"rollout": {"hinted": 1}, "env": {"name": "agent"}},
            "rollout.hinted: must be 0 with env.name='agent'",
        ),
        (
            {"preset": "grpo", "advantage": {"name": "tree"}},
            {},
            "rollout.branches: must be above 0 for algo.advantage.name='tree', got 0",
        ),
    ],
)
def test_what_a_recipe_lacks_is_named(algo, sections, message):
    with pytest.raises(ConfigError, match=message):
        check_objective(recipe(algo, **sections))


@pytest.mark.parametrize("preset", ["reinforce_pp", "ppo", "remax", "opd", "sao"])
def test_objectives_that_compare_no_episodes_take_groups_of_one(preset):
    check_objective(recipe({"preset": preset}, teacher=TEACHER, rollout={"group_size": 1}))


@pytest.mark.parametrize(
    ("train", "preset", "message"),
    [
        ({}, "grpo", "train.complete_groups must be true with train.complete_from='runs/strong', got false"),
        (
            {"complete_groups": True, "router_replay": True},
            "grpo",
            "train.complete_from must be empty with train.router_replay=true: files of episodes have no experts",
        ),
        (
            {"complete_groups": True},
            "gigpo",
            "train.complete_from must be empty for an objective that reads an observation id per turn",
        ),
        (
            {"complete_groups": True},
            "gdpo",
            "train.complete_from must be empty for an objective that reads named reward components",
        ),
    ],
)
def test_recorded_successes_are_refused_where_their_files_lack_what_the_run_reads(train, preset, message):
    given = {"train": {"complete_from": "runs/strong"} | train, "curriculum": {"name": "vade"}}
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_objective(recipe({"preset": preset}, **given))


@pytest.mark.parametrize("preset", sorted(known_presets()))
def test_every_preset_is_accepted(preset):
    settings = check_objective(recipe({"preset": preset}, teacher=TEACHER))
    assert settings["loss"]["name"]


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({}, "curriculum.name='file_order', which plays each task once"),
        (
            {
                "curriculum": {"name": "vade"},
                "train": {"complete_groups": True, "schedule": "periodic"},
                "buffer": {"max_staleness": 0},
            },
            "train.schedule='periodic', which trains on groups as they arrive",
        ),
    ],
)
def test_groups_are_completed_only_where_their_tasks_return_and_they_are_kept(sections, why):
    sections = {"train": {"complete_groups": True}} | sections
    with pytest.raises(ConfigError, match=f"train.complete_groups must be false with {re.escape(why)}"):
        recipe({"preset": "grpo"}, **sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"curriculum": {"name": "vade", "turn_slack": 0.5}}, "turn_slack must be 0 or at least 1, got 0.5"),
        ({"curriculum": {"turn_slack": 1.5}}, "turn_slack must be 0 with curriculum.name='file_order'"),
        (
            {"curriculum": {"name": "vade", "turn_slack": 1.5}, "env": {"name": "agent"}},
            "turn_slack must be 0 with env.name='agent'",
        ),
        (
            {"curriculum": {"name": "xrpo", "settings": {"seeds": 2}}, "env": {"name": "agent"}},
            "settings.seeds must be 0 with env.name='agent'",
        ),
    ],
)
def test_limits_and_examples_by_earlier_successes_are_refused_where_there_can_be_none(sections, message):
    with pytest.raises(ConfigError, match=re.escape(f"curriculum.{message}")):
        recipe({"preset": "grpo"}, **sections)


OPPONENTS = {"opponents": {"choose": "uniform"}, "lora": {"rank": 4}}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"lora": {"rank": 0}}, "lora.rank must be above 0 for opponents.choose='uniform'"),
        ({"engine": {"weight_transfer": "http"}}, "engine.weight_transfer must be left out"),
        ({"policies": {"other": {"agents": ["second"]}}}, "policies must be left out"),
        ({"env": {"name": "agent"}}, "env.name='agent' must be left out"),
        ({"rollout": {"branches": 1}}, "rollout.branches must be left out"),
        ({"rollout": {"hinted": 1}}, "rollout.hinted must be left out"),
        ({"judge": {"url": "http://j"}}, "judge must be left out with opponents.choose='uniform'"),
        ({"outer": {"url": "http://o"}}, "outer.url must be left out with opponents.choose='uniform'"),
    ],
)
def test_a_population_of_opponents_is_refused_where_it_cannot_be_played(sections, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        recipe({"preset": "spiral"}, **(OPPONENTS | sections))


EXPLOITER = OPPONENTS | {"policies": {"rival": {"exploits": 8}}}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"policies": {"rival": {"exploits": 8, "agents": ["second"]}}},
            "policies.rival: either agents or exploits must be given",
        ),
        (
            {"policies": {"rival": {"agents": ["helper"]}}},
            "policies must be left out with opponents.choose='uniform'",
        ),
        (
            {"opponents": {}},
            "opponents.choose must be 'uniform' or 'prioritised' with policies.rival.exploits",
        ),
        (
            {"policies": {"rival": {"exploits": 8}, "other": {"exploits": 4}}},
            "policies.other.exploits: must be 0 beside policies.rival, the run's exploiter",
        ),
        (
            {"policies": {"rival": {"exploits": 8, "lora": {"rank": 0}}}},
            "policies.rival.exploits: the policy must train an adapter of the recipe's own model, on its engines",
        ),
        (
            {"train": {"checkpoint_every": 0}},
            "train.checkpoint_every must be above 0 with policies.rival.exploits",
        ),
    ],
)
def test_an_exploiter_is_refused_where_it_cannot_join_or_start_again(sections, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        recipe({"preset": "spiral"}, **(EXPLOITER | sections))


MINIMAX = OPPONENTS | {"policies": {"rival": {"exploits": 8, "minimax": True}}}


def rival(**more):
    return {"policies": {"rival": {"exploits": 8, "minimax": True, **more}}}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"opponents": {}, "policies": {"rival": {"agents": ["second"], "minimax": True}}},
            "policies.rival.minimax: must be false where policies.rival.exploits is 0, got true",
        ),
        (
            {"train": {"checkpoint_every": 0}, **rival(train={"checkpoint_every": 2})},
            "train.checkpoint_every: must be above 0 with policies.rival.minimax",
        ),
        (
            {"train": {"schedule": "synchronous"}, **rival(train={"schedule": "periodic"})},
            "policies.rival.train.schedule: must be synchronous, one_step_off, asynchronous or partial with",
        ),
        (
            rival(buffer={"drop_no_signal": True}),
            "policies.rival.buffer.drop_no_signal: must be false, or left out with policies.rival.minimax",
        ),
    ],
)
def test_a_critics_reward_is_refused_where_the_critic_cannot_be_read_or_used(sections, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        recipe({"preset": "ppo"}, **(MINIMAX | sections))


@pytest.mark.parametrize(
    ("algo", "more", "message"),
    [
        ({"preset": "grpo"}, {}, "where the recipe's own policy has no critic, got true"),
        ({"preset": "ppo"}, {"algo": {"preset": "gdpo"}}, "learns from named reward components instead"),
        ({"preset": "ppo"}, {"algo": {"preset": "ui_s1"}}, "learns from whether each action agrees with a recorded"),
        ({"preset": "ppo"}, {"algo": {"preset": "opd"}}, "learns from log-probabilities of a teacher policy instead"),
        ({"preset": "ppo"}, {"algo": {"loss": "sft"}}, "policies.rival.algo.loss.name='sft', which reads no rewards"),
        ({"preset": "ppo"}, {"algo": {"preset": "spo"}}, "needs a per-prompt baseline tracker"),
    ],
)  # fmt: skip
def test_a_critics_reward_needs_a_critic_and_an_objective_that_reads_it(algo, more, message):
    config = recipe(algo, **(MINIMAX | rival(**more)))
    with pytest.raises(ConfigError, match=r"policies\.rival\.minimax: must be false.*" + re.escape(message)):
        check_policy_objectives(config)


def test_a_critics_reward_without_a_critic_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="recipe's own policy has no critic"):
        check_recipe(recipe({"preset": "grpo"}, **MINIMAX))


def test_a_critics_reward_keeps_groups_that_the_game_rewards_alike():
    plain, judged = (recipe({"preset": "ppo"}, **sections) for sections in (EXPLOITER, MINIMAX))
    check_policy_objectives(judged)
    check_policy_objectives(recipe({"preset": "ppo"}, **(MINIMAX | rival(algo={"preset": "dr_mas"}))))
    assert tuple(map(minimax, (plain, judged, judged.policy("rival")))) == (False, True, False)
    assert [one.policy("rival").buffer.drop_no_signal for one in (plain, judged)] == [None, False]


def test_engines_hold_an_exploiters_copies_beside_past_versions():
    alone, league = (recipe({"preset": "spiral"}, **sections) for sections in (OPPONENTS, EXPLOITER))
    assert most_members(league) == most_members(alone) + league.opponents.size + 1
    assert population(league).exploiter == "rival"
    assert population(league.policy("rival")) is None


def test_a_population_of_opponents_excludes_a_greedy_baseline():
    check_objective(recipe({"preset": "spiral"}, **OPPONENTS))
    with pytest.raises(ConfigError, match=r"opponents\.choose: must be 'off' for an objective with a greedy"):
        check_objective(recipe({"preset": "remax"}, **OPPONENTS))


def test_the_check_loads_no_torch():
    code = "import sys, asyncrl.config_checks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("algo", "train", "named"),
    [
        ({"preset": "grpo"}, {"num_minibatches": 2}, "train.num_minibatches=2"),
        ({"preset": "reinforce_pp"}, {}, "algo.advantage.name='reinforce_pp'"),
        ({"preset": "grpo", "advantage": {"std": "batch"}}, {}, "algo.advantage.std='batch'"),
        ({"preset": "grpo", "normalize": {"name": "tokens"}}, {}, "algo.normalize.name='tokens'"),
        ({"preset": "sat"}, {}, "algo.loss.name='sat'"),
        ({"preset": "grpo", "denominator": "kept"}, {}, "algo.denominator='kept'"),
        ({"preset": "m2po"}, {}, "algo.corrections: 'm2po'"),
        ({"preset": "grpo", "filters": ["max_variance"]}, {}, "algo.filter.name='max_variance'"),
        ({"preset": "grpo", "kl": {"where": "reward", "coef": 0.1}}, {}, "algo.kl.where='reward'"),
    ],
)
def test_the_periodic_schedule_refuses_what_reads_the_whole_batch(algo, train, named):
    with pytest.raises(ConfigError, match="'periodic' trains on groups as they arrive") as caught:
        check_objective(recipe(algo, train={"schedule": "periodic", **train}))
    assert named in str(caught.value)


def test_the_periodic_schedule_takes_group_relative_objectives():
    assert check_objective(recipe({"preset": "decoupled_ppo"}, train={"schedule": "periodic"}))
    assert check_objective(recipe({"preset": "dapo"}, train={"schedule": "periodic"}))


@pytest.mark.parametrize(
    ("train", "algo", "named"),
    [
        (
            {"ranks": 4, "sequence_parallel": 3},
            {},
            "train.sequence_parallel: must divide train.ranks=4, got 3",
        ),
        (
            {"ranks": 4, "sequence_parallel": 2},
            {"preset": "vcpo"},
            "train.sequence_parallel: must be 1 where algo.advantage reads the norm",
        ),
        ({"offload_activations": True}, {}, "train.offload_activations: .* train.gradient_checkpointing"),
    ],
)
def test_keys_for_long_rows_that_exclude_each_other_are_refused(train, algo, named):
    with pytest.raises(ConfigError, match=named):
        check_objective(recipe(algo, train=train))
