"""Groups without a signal: the marks of the advantages agree with their numbers, and presets with their formulas."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from asyncrl.algo.advantage_batch import AdvantageOutputs
from asyncrl.algo.curation.signal import QUANTITIES, differ, succeeded
from asyncrl.algo.needs import COMPARED, zero_where_equal
from asyncrl.algo.presets import known_presets
from asyncrl.algo.registry import parts, resolve
from asyncrl.algo.settings import always_signal, compared, resolve_settings
from asyncrl.algo.signature import read
from asyncrl.types import Trajectory, Turn
from tests.algo.factories import batch_for
from tests.algo.test_advantage_properties import REQUIRED
from tests.buffer.factories import trajectory

MARKED = sorted(
    name for name in parts()["advantage"] if (found := read("advantage", name)) and found.zero_where_equal
)


def advantages_of(name: str, batch: Any) -> torch.Tensor:
    found = resolve("advantage", name)(batch, **REQUIRED.get(name, {}))
    return found.advantages if isinstance(found, AdvantageOutputs) else found


def alike(name: str, group: int) -> Any:
    """A batch whose rows of one group agree in what the estimator is marked with, and in nothing else."""
    batch = batch_for(name, 3)
    signature = read("advantage", name)
    assert signature is not None
    words = signature.zero_where_equal
    rows = (batch.group == group).nonzero().squeeze(-1).tolist()
    rewards, turns = batch.rewards.clone(), [list(row) for row in batch.turn_rewards]
    components = {key: values.clone() for key, values in batch.components.items()}
    first = rows[0]
    for place, row in enumerate(rows):
        if words & {"turn_rewards", "steps"}:
            turns[row] = list(turns[first])
        else:
            # The same sum, differently spread over the turns.
            turns[row] = [0.25 * place, float(rewards[first]) - 0.25 * place]
        rewards[row] = rewards[first] if words != {"components"} else rewards[row]
        if "components" in words:
            for values in components.values():
                values[row] = values[first]
    changes: dict[str, Any] = {"rewards": rewards, "turn_rewards": turns, "components": components}
    if "steps" in words:
        ids = [list(row) for row in batch.observation_ids]
        changes["observation_ids"] = [ids[first] if row in rows else one for row, one in enumerate(ids)]
    if "matches" in words:
        matches = [list(row) for row in batch.turn_matches]
        changes["turn_matches"] = [matches[first] if row in rows else one for row, one in enumerate(matches)]
    return dataclasses.replace(batch, **changes), rows


class TestMarks:
    @pytest.mark.parametrize("name", MARKED)
    def test_a_group_that_agrees_in_what_is_marked_has_no_advantage(self, name):
        batch, rows = alike(name, 1)
        advantages = advantages_of(name, batch)
        assert advantages[rows].abs().max() < 1e-9
        others = [row for row in range(len(batch.rewards)) if row not in rows]
        assert advantages[others].abs().max() > 1e-3

    @pytest.mark.parametrize("name", sorted(set(parts()["advantage"]) - set(MARKED)))
    def test_an_estimator_without_a_mark_says_so_to_the_buffer(self, name):
        parameters = REQUIRED.get(name, {})
        settings = {"advantage": {"name": name, **parameters}}
        assert compared(resolve_settings(settings)) == frozenset()

    def test_a_word_outside_the_table_is_refused(self):
        with pytest.raises(ValueError, match="unknown quantity 'reward'; allowed: rewards, turn_rewards"):
            zero_where_equal("reward")

    def test_every_word_can_be_read_from_a_trajectory(self):
        assert set(QUANTITIES) == set(COMPARED)


# What each preset's formula learns from a group whose episodes earned the same sum: "never" drops none, other words are
# what must agree, too, before a group is dropped.
NEVER = {
    "reinforce_pp", "reinforce_pp_baseline", "remax", "spo", "spiral", "mssr", "igpo", "a2tgpo", "ppo", "pf_ppo",
    "ppo_turn", "vapo", "sao", "archer", "impala", "kimi", "sat", "topr", "opd", "sdpo",
    "kl_cov",
}  # fmt: skip
FINER = {
    "gdpo": {"components"},
    "mt_grpo": {"rewards", "turn_rewards"},
    "gigpo": {"rewards", "steps"},
    "hgpo": {"rewards", "steps"},
    "ui_s1": {"rewards", "turn_rewards", "matches"},
}
PLAIN = {
    "grpo", "dr_grpo", "dapo", "rloo", "opo", "passk", "maxrl", "gpg", "mc_grpo", "dr_mas", "m_grpo", "gspo", "luspo",
    "clip_cov", "cispo", "dppo", "gmpo", "aspo", "intellect2", "decoupled_ppo", "ppo_ewma", "vcpo", "tis",
    "icepop", "mis", "m2po",
}  # fmt: skip


class TestPresets:
    @pytest.mark.parametrize("preset", sorted(NEVER & set(known_presets())))
    def test_what_may_learn_from_any_group_drops_none(self, preset):
        settings = resolve_settings({"preset": preset})
        assert compared(settings) == frozenset()
        assert always_signal(settings)

    @pytest.mark.parametrize("preset", sorted(FINER))
    def test_what_reads_more_than_the_sum_compares_that(self, preset):
        assert compared(resolve_settings({"preset": preset})) == FINER[preset]

    @pytest.mark.parametrize("preset", sorted(PLAIN & set(known_presets())))
    def test_what_reads_the_sum_alone_compares_the_sum(self, preset):
        assert compared(resolve_settings({"preset": preset})) == {"rewards"}

    @pytest.mark.parametrize(
        "changes",
        [
            {"kl": {"coef": 0.01}},
            {"kl": {"coef": 0.01, "where": "reward"}},
            {"entropy_coef": 0.001},
            {"success_nll_coef": 0.1},
            {"normalize": {"name": "tokens"}},
        ],
    )
    def test_a_further_term_gives_every_group_a_gradient(self, changes):
        assert compared(resolve_settings({"preset": "grpo", **changes})) == frozenset()


def played(reward: float, turns: list[float], **fields: Any) -> Trajectory:
    made = trajectory("t0", reward=reward)
    spread = tuple(
        Turn(start=i, end=i + 1, reward=r, observation_id=o)
        for i, (r, o) in enumerate(zip(turns, fields.pop("observations", ["s"] * len(turns)), strict=True))
    )
    return dataclasses.replace(made, turns=spread, **fields)


class TestDiffer:
    def test_equal_sums_of_other_components_differ_for_what_reads_components(self):
        group = [
            played(1.0, [1.0], components={"right": 1.0, "short": 0.0}),
            played(1.0, [1.0], components={"right": 0.0, "short": 1.0}),
        ]
        assert differ(group, {"components"})
        assert not differ(group, {"rewards"})

    def test_equal_sums_of_other_turns_differ_for_what_reads_turns(self):
        group = [played(1.0, [1.0, 0.0]), played(1.0, [0.0, 1.0])]
        assert differ(group, {"rewards", "turn_rewards"})
        assert not differ(group, {"rewards"})

    def test_successes_of_other_lengths_differ_for_what_credits_steps_and_failures_do_not(self):
        successes = [played(1.0, [0.0, 1.0]), played(1.0, [0.0, 0.0, 1.0])]
        failures = [played(0.0, [0.0, 0.0]), played(0.0, [0.0, 0.0, 0.0])]
        assert differ(successes, {"rewards", "steps"})
        assert not differ(failures, {"rewards", "steps"})


def test_the_environments_verdict_counts_before_the_reward():
    solved, failed = played(1.0, [1.0]), played(0.0, [0.0])
    assert (succeeded(solved), succeeded(failed)) == (True, False)
    judged = dataclasses.replace(solved, success=False), dataclasses.replace(failed, success=True)
    assert [succeeded(one) for one in judged] == [False, True]
