"""What must hold for every advantage estimator of the registry."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.algo.advantage_batch import TOKEN_FIELDS, AdvantageOutputs
from asyncrl.algo.registry import parts, resolve
from tests.algo.factories import advantage_batch, batch_for

seeds = st.integers(0, 2**31 - 1)
few = settings(max_examples=10)

REQUIRED: dict[str, dict[str, Any]] = {"hierarchical_grpo": {"rollout_agents": ["solver"]}}
GROUP_CENTRED: dict[str, list[dict[str, Any]]] = {
    "a2tgpo": [{}],
    "dr_grpo": [{}],
    "gigpo": [{}, {"mode": "mean_norm"}],
    "gpg": [{}],
    "grpo": [
        {"mean": mean, "std": std, "ddof": ddof, "eps": 1e-8}
        for mean in ("group", "leave_one_out")
        for std in ("group", "batch", "leave_one_out", "none")
        for ddof in (0, 1)
    ],
    "hierarchical_grpo": [{}],
    "hinted_grpo": [{}],
    "hgpo": [{}, {"base_group": True}],
    "igpo": [{}, {"source": "environment"}],
    "igpo_released": [{}],
    "maxrl": [{}],
    "mc_grpo": [{}, {"mad_zero": "paper"}, {"mad_zero": "floor", "rescale": True}],
    "mt_grpo": [{}],
    "multi_agent": [{}, {"by": "trajectory"}, {"invocations": 3}],
    "opo": [{}],
    "passk": [{}],
    "rloo": [{}],
    "tree": [{}],
    "ui_s1": [{}],
    "vcpo": [{"score": score} for score in ("length", "logit", "gradient")],
}


def estimate(name: str, batch, **params) -> torch.Tensor:
    chosen = REQUIRED.get(name, {})
    found = resolve("advantage", name)(batch, **{**chosen, **params})
    return found.advantages if isinstance(found, AdvantageOutputs) else found


@pytest.mark.parametrize("name", sorted(parts()["advantage"]))
class TestEveryEstimator:
    @few
    @given(seed=seeds)
    def test_masked_positions_are_zero_and_never_read(self, name, seed):
        batch = batch_for(name, seed)
        spoiled = {}
        for field in TOKEN_FIELDS:
            x = getattr(batch, field)
            if x is not None:
                spoiled[field] = torch.where(batch.mask, x, torch.nan)
        advantages = estimate(name, batch)
        assert (advantages[~batch.mask] == 0).all()
        assert torch.isfinite(advantages).all()
        assert torch.equal(advantages, estimate(name, dataclasses.replace(batch, **spoiled)))

    @few
    @given(seed=seeds, extra=st.integers(1, 4))
    def test_padding_changes_nothing(self, name, seed, extra):
        batch = batch_for(name, seed)

        def widen(x, value=0):
            return torch.nn.functional.pad(x, (0, extra), value=value)

        wide = {f: widen(getattr(batch, f)) for f in TOKEN_FIELDS if getattr(batch, f) is not None}
        wide |= {"mask": widen(batch.mask, False), "turn_ids": widen(batch.turn_ids, -1)}
        advantages = estimate(name, batch)
        padded = estimate(name, dataclasses.replace(batch, **wide))
        torch.testing.assert_close(padded[:, : advantages.shape[1]], advantages, rtol=1e-12, atol=1e-12)
        assert (padded[:, advantages.shape[1] :] == 0).all()

    @few
    @given(seed=seeds)
    def test_permuting_rows_permutes_the_advantages(self, name, seed):
        batch = batch_for(name, seed)
        order = torch.randperm(len(batch.group), generator=torch.Generator().manual_seed(seed))
        moved: dict[str, Any] = {}
        for field in dataclasses.fields(batch):
            x = getattr(batch, field.name)
            if isinstance(x, torch.Tensor):
                moved[field.name] = x[order]
            elif isinstance(x, list):
                moved[field.name] = [x[i] for i in order]
            elif isinstance(x, dict):
                moved[field.name] = {k: v[order] for k, v in x.items()}
        permuted = estimate(name, dataclasses.replace(batch, **moved))
        torch.testing.assert_close(permuted, estimate(name, batch)[order], rtol=1e-9, atol=1e-9)

    @few
    @given(seed=seeds)
    def test_float32_agrees_with_float64(self, name, seed):
        """To 1e-3, apart from a scale that small standard deviations set."""
        batch = batch_for(name, seed)
        low: dict[str, Any] = {}
        for field in dataclasses.fields(batch):
            x = getattr(batch, field.name)
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                low[field.name] = x.float()
        low["components"] = {k: v.float() for k, v in batch.components.items()}
        exact = estimate(name, batch)
        scale = exact.abs().max().clamp(min=1)
        difference = (estimate(name, dataclasses.replace(batch, **low)).double() - exact).abs().max()
        assert difference / scale < 1e-3


@pytest.mark.parametrize(
    ("name", "params"), [(name, params) for name, variants in GROUP_CENTRED.items() for params in variants]
)
@few
@given(reward=st.floats(-3, 3, allow_nan=False, width=32), size=st.integers(2, 7))
def test_groups_without_variance_get_exactly_zero(name, params, reward, size):
    batch = advantage_batch(0, groups=2, size=size)
    rows = len(batch.group)
    flat = dataclasses.replace(
        batch,
        rewards=torch.full((rows,), reward, dtype=torch.float64),
        turn_rewards=[[0.0, reward] for _ in range(rows)],
        observation_ids=[["start", "same"]] * rows,
        turn_matches=[[False, False]] * rows,
        answer_probability=torch.full((rows, 2), 0.3, dtype=torch.float64),
    )
    advantages = estimate(name, flat, **params)
    if name in ("igpo", "igpo_released", "gigpo", "hgpo"):
        # Returns of the two turns differ by the discount; only equal turns are compared.
        advantages = advantages[:, :1] - advantages[:1, :1]
    assert (advantages == 0).all()


def test_a_lone_row_gets_zero_or_its_reward_as_configured():
    batch = advantage_batch(0, groups=3, size=1)
    assert (estimate("grpo", batch) == 0).all()
    raw = estimate("grpo", batch, singleton="raw", std="none")
    torch.testing.assert_close(raw[:, 0], batch.rewards)


def test_token_rewards_sit_on_the_last_token_of_each_turn_and_sum_to_the_reward():
    batch = advantage_batch(3, rewards=torch.full((12,), 5.0, dtype=torch.float64))
    rewards = batch.token_rewards()
    torch.testing.assert_close(rewards.sum(1), batch.rewards)
    assert (rewards[~batch.mask] == 0).all()
    first_turn_end = batch.mask.shape[1] // 2 - 2
    assert rewards[0, first_turn_end].item() == pytest.approx(batch.turn_rewards[0][0])


def test_a_missing_field_is_named():
    batch = advantage_batch(0, values=None)
    with pytest.raises(ValueError, match=r"AdvantageBatch\.values"):
        estimate("gae", batch)


def test_nan_rewards_are_refused():
    with pytest.raises(ValueError, match="rewards"):
        advantage_batch(0, groups=1, size=2, rewards=torch.tensor([torch.nan, 1.0]))


def test_m_grpo_aligns_the_invocations_of_an_agent_in_every_rollout():
    """Rollout a calls the helper three times, b once: with two each, one of a's is left out and b's counts twice."""
    batch = advantage_batch(
        0, groups=1, size=6,
        rewards=torch.tensor([1.0, 0, 1, 1, 1, 0], dtype=torch.float64),
        agents=["", "", "helper", "helper", "helper", "helper"],
        rollouts=["a", "b", "a", "a", "a", "b"],
    )  # fmt: skip
    outputs = resolve("advantage", "multi_agent")(batch, invocations=2, eps=0.0)
    assert outputs.keep.tolist()[:2] == [True, True]
    assert outputs.keep[2:5].sum() == 2
    assert bool(outputs.keep[5])
    scores = outputs.advantages[:, 0]
    torch.testing.assert_close(scores[:2], torch.tensor([0.5, -0.5], dtype=torch.float64) * 2**0.5)
    # Of 1, 1, 0 and 0 the standard deviation is 1 / sqrt(3), and the last row stands for two.
    one = 0.5 * 3**0.5
    expected = [one * float(kept) for kept in outputs.keep[2:5]] + [-2 * one]
    torch.testing.assert_close(scores[2:], torch.tensor(expected, dtype=torch.float64))
    again = resolve("advantage", "multi_agent")(batch, invocations=2, eps=0.0)
    assert torch.equal(again.keep, outputs.keep)
    # Without alignment three successes of four are compared with one failure.
    plain = resolve("advantage", "multi_agent")(batch, eps=0.0)
    torch.testing.assert_close(
        plain.advantages[2:, 0], torch.tensor([0.5, 0.5, 0.5, -1.5], dtype=torch.float64)
    )
    assert plain.keep.all()
