"""A function named by import path does what it does under its registered name, and asks for as much."""

from __future__ import annotations

import pytest
import torch

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.objective import build_objective
from asyncrl.algo.registry import parts
from asyncrl.algo.settings import part_needs, resolve_settings
from asyncrl.config import parse_config
from asyncrl.config_checks import check_objective
from asyncrl.errors import ConfigError
from tests.algo.factories import batch_for, loss_fields
from tests.conformance.tensors import count_totals

KEYS = {"correction": "corrections", "shaping": "shaping", "filter": "filters"}
PARAMS = {
    "hierarchical_grpo": {"rollout_agents": ["solver"]},
    "opsm": {"delta": 0.1},
    "sequence_kl": {"upper": 0.1},
    "overlong_soft": {"max_len": 6, "buffer": 2},
    "seq_mean_token_sum_norm": {"horizon": 32},
    "trl_dr_grpo": {"horizon": 32},
    "token_tis": {"batch_normalize": True},
    "vcpo": {"score": "logit"},
}
EVERY = [(kind, name) for kind, names in parts().items() for name in names]
OWN = "tests.algo.own_parts"


def section(kind, name, params):
    if kind == "kl":
        return {"kl": {"estimator": name, "coef": 0.1}}
    part = {"name": name, **params}
    return {KEYS[kind]: [part]} if kind in KEYS else {kind: part}


def outcome(algo, name):
    """What an objective asks for and what it computes."""
    objective = build_objective(algo)
    batch = batch_for(name, 1)
    estimate = objective.estimate(batch)
    fields = loss_fields(2, rows=12, width=8, spread=0.1)
    fields |= {"mask": batch.mask, "advantages": estimate.advantages, "group": batch.group}
    inputs = LossInputs.of(fields)
    ratio = (
        objective.with_proximal(inputs).log_ratio[inputs.mask] if objective.needs_ratio_statistics else None
    )
    statistics = objective.step_statistics(inputs)
    statistics |= {} if ratio is None else objective.ratio_statistics(ratio)
    totals = count_totals(inputs.mask, inputs.group, objective.horizon)
    loss, _ = objective.loss(LossInputs.of({**fields, "statistics": statistics}), totals)
    needs = (objective.needs, part_needs("advantage", objective.settings["advantage"]))
    return needs, {"loss": loss, "advantages": estimate.advantages, "keep": estimate.keep, **statistics}


def assert_equal(one, other):
    assert one[0] == other[0]
    assert set(one[1]) == set(other[1])
    for name, value in one[1].items():
        torch.testing.assert_close(other[1][name], value, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_an_import_path_is_the_same_part_as_the_registered_name(kind, name):
    params = PARAMS.get(name, {})
    assert_equal(
        outcome(section(kind, name, params), name), outcome(section(kind, parts()[kind][name], params), name)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_module_that_imports_a_function_offers_the_same_part(kind, name, tmp_path):
    module, _, function = parts()[kind][name].partition(":")
    file = tmp_path / "own.py"
    file.write_text(f"from {module} import {function} as renamed\n")
    params = PARAMS.get(name, {})
    assert_equal(
        outcome(section(kind, name, params), name), outcome(section(kind, f"{file}:renamed", params), name)
    )


def test_an_import_path_overrides_single_parameters_of_the_preset_as_the_short_name_does():
    by_name = {"preset": "spo", "normalize": {"name": "sequences", "ddof": 0}}
    by_path = {"preset": "spo", "normalize": {"name": parts()["normalize"]["sequences"], "ddof": 0}}
    assert resolve_settings(by_path) == resolve_settings(by_name)
    assert resolve_settings(by_path)["normalize"]["eps"] == 1e-8


def test_a_users_correction_gets_the_statistics_that_it_asks_for():
    objective = build_objective({"corrections": [{"name": f"{OWN}:largest_of_step", "scale": 3.0}]})
    inputs = LossInputs.of(loss_fields(3))
    statistics = objective.step_statistics(inputs)
    expected = 3 * (inputs.proximal_logp - inputs.behavior_logp)[inputs.mask].abs().max()
    torch.testing.assert_close(statistics["largest"], expected)
    assert objective.needs_step_statistics
    assert "entropy" not in objective.needs


def test_a_need_holds_only_under_its_condition():
    part = {"name": f"{OWN}:largest_of_step", "with_entropy": True}
    assert "entropy" in build_objective({"corrections": [part]}).needs
    for score, word in (("gradient", "score_norms"), ("logit", "sum_pi_squared"), ("length", None)):
        objective = build_objective({"preset": "vcpo", "advantage": {"score": score}})
        found = part_needs("advantage", objective.settings["advantage"])
        assert found & {"score_norms", "sum_pi_squared"} == ({word} if word else set())


@pytest.mark.parametrize(
    ("algo", "named"),
    [
        ({"loss": f"{OWN}:adaptive_region"}, f"algo.loss.name='{OWN}:adaptive_region'"),
        ({"corrections": [f"{OWN}:second_moment"]}, f"algo.corrections: '{OWN}:second_moment'"),
        ({"advantage": {"name": parts()["advantage"]["grpo"], "std": "batch"}}, "algo.advantage.std='batch'"),
    ],
)
def test_the_periodic_schedule_refuses_what_reads_the_whole_batch_by_any_name(algo, named):
    recipe = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "train": {"schedule": "periodic"}}
    with pytest.raises(ConfigError, match="'periodic' trains on groups as they arrive") as caught:
        check_objective(parse_config(recipe | {"algo": algo}))
    assert named in str(caught.value)


def test_the_periodic_schedule_takes_a_group_local_advantage_by_import_path():
    recipe = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "train": {"schedule": "periodic"}}
    algo = {"advantage": parts()["advantage"]["rloo"], "normalize": parts()["normalize"]["none"]}
    assert check_objective(parse_config(recipe | {"algo": algo}))["advantage"] == {"name": "rloo"}


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("@needs(WORDS[0])", r"@needs must have literal arguments, got WORDS\[0\]"),
        ("@needs('entropy', scale=1.0)", "@needs asks for 'scale', which is no parameter of the function"),
    ],
)
def test_marks_that_could_not_hold_or_be_read_are_refused(tmp_path, mark, message):
    file = tmp_path / "own.py"
    file.write_text(f"WORDS = ('entropy',)\n{mark}\ndef mine(inputs): ...\n")
    with pytest.raises(ConfigError, match=message):
        resolve_settings({"loss": f"{file}:mine"})


def test_statistics_that_no_function_of_a_kind_would_read_are_refused(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("@step_statistics(largest)\ndef mine(batch): ...\n")
    with pytest.raises(
        ConfigError, match=r"algo.advantage.name: .* has @step_statistics; allowed on: loss, correction"
    ):
        resolve_settings({"advantage": f"{file}:mine"})
