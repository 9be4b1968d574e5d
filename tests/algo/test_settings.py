"""Checking the `algo` section: what is allowed, what is refused, and that torch stays out of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from asyncrl.algo import registry, signature
from asyncrl.algo.needs import marks_of
from asyncrl.algo.presets import known_presets
from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "algorithms"


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ({"preset": "grppo"}, "preset.*'grppo'.*did you mean 'grpo'"),
        ({"loss": "ppo_clop"}, "loss.*'ppo_clop'.*did you mean 'ppo_clip'"),
        ({"loss": {"name": "ppo_clip", "eps_hi": 0.1}}, r"loss\.eps_hi.*did you mean 'eps_high'"),
        ({"loss": {"name": "ppo_clip", "eps_low": "wide"}}, r"loss\.eps_low: got 'wide', allowed: float"),
        ({"loss": {"name": "ppo_clip", "eps_low": True}}, r"loss\.eps_low: got True"),
        ({"advantage": {"name": "grpo", "std": "grup"}}, r"advantage\.std: got 'grup'.*leave_one_out"),
        ({"advantages": "grpo"}, "algo.advantages: unknown key.*did you mean 'advantage'"),
        ({"loss": "no_such_package.module:f"}, "there is no module"),
        ({"loss": "asyncrl.algo.loss.ppo:ppo_clap"}, "no function 'ppo_clap'.*did you mean 'ppo_clip'"),
        ({"corrections": ["opsm"]}, r"corrections\[0\]\.delta: 'opsm' needs this parameter"),
        ({"corrections": "token_tis"}, 'algo.corrections: input should be a valid list, got "token_tis"'),
        ({"kl": {"estimator": "k4"}}, "kl: unknown name 'k4'"),
        (
            {"kl": {"where": "nowhere"}},
            r"algo\.kl\.where: input should be 'loss' or 'reward', got \"nowhere\"",
        ),
        ({"kl": {"unbiased": True, "where": "reward"}}, r"algo\.kl\.unbiased: weighs the KL's gradient"),
        ({"kl": {"coefficient": 1}}, r"kl\.coefficient: unknown key"),
        ({"kl": 0.1}, "algo.kl: must be a table, got 0.1"),
        ({"loss": 5}, "algo.loss: must be a text or a table, got 5"),
        ({"entropy_coef": "some"}, 'algo.entropy_coef: input should be a valid number, got "some"'),
        (
            {"success_nll_coef": -0.1},
            "algo.success_nll_coef: input should be greater than or equal to 0, got -0.1",
        ),
        ({"denominator": "shrunk"}, "algo.denominator: input should be 'original' or 'kept'"),
        ("grpo", "expected a mapping"),
    ],
)
def test_mistakes_are_named_with_what_is_allowed(algo, message):
    with pytest.raises(ConfigError, match=message):
        resolve_settings(algo)


def test_integers_and_none_fit_where_the_annotation_says_so():
    loss = resolve_settings({"loss": {"name": "ppo_clip", "eps_low": 1, "dual_clip": None}})["loss"]
    assert loss == {"name": "ppo_clip", "eps_low": 1, "dual_clip": None}


@dataclass
class Section:
    preset: str = "gspo"
    loss: dict | None = None
    entropy_coef: float = 0.01
    corrections: list = field(default_factory=list)


def test_a_dataclass_section_is_accepted():
    settings = resolve_settings(Section())
    assert settings["loss"]["name"] == "gspo"
    assert settings["entropy_coef"] == 0.01
    assert settings["corrections"] == []


def test_a_part_with_another_name_replaces_the_presets_part():
    settings = resolve_settings({"preset": "gspo", "loss": {"name": "ppo_clip"}})
    assert settings["loss"] == {"name": "ppo_clip"}


def test_needs_are_read_without_importing_the_functions():
    assert {"values", "turns"} <= needed(resolve_settings({"preset": "ppo_turn"}))
    assert "reference" in needed(resolve_settings({"kl": {"coef": 0.1}}))


def test_every_registered_function_exists():
    for kind, names in registry.parts().items():
        for name in names:
            assert signature.read(kind, name) is not None
            assert callable(registry.resolve(kind, name))


def test_marks_match_what_the_source_says():
    for kind, names in registry.parts().items():
        for name in names:
            found = signature.read(kind, name)
            assert found is not None
            assert marks_of(registry.resolve(kind, name)) == found.marks


def test_checking_imports_no_torch():
    code = (
        "import sys\n"
        "from asyncrl.algo.settings import resolve_settings\n"
        "from asyncrl.algo.presets import known_presets\n"
        "for name in known_presets(): resolve_settings({'preset': name, 'kl': {'coef': 0.1}})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_name_is_documented():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    names = [*known_presets(), *(name for names in registry.parts().values() for name in names)]
    missing = [name for name in names if f"`{name}`" not in pages]
    assert not missing


def test_the_table_of_presets_is_current():
    from tests.algo.docs_table import preset_table

    assert preset_table() in (DOCS / "presets.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ({"value": {"trunk": "both"}}, "algo.value.trunk: input should be 'own' or 'shared'"),
        (
            {"value": {"learning_rate": -1.0}},
            "algo.value.learning_rate: .* greater than or equal to 0, got -1.0",
        ),
        (
            {"staleness_control": {"patience": 0}},
            "algo.staleness_control.patience: input should be greater than or equal to 1, got 0",
        ),
        ({"value": {"steps": 2.5}}, "algo.value.steps: input should be a valid integer, got 2.5"),
        ({"value": {"step": 2}}, "algo.value.step: unknown key; did you mean 'steps'"),
    ],
)
def test_tables_of_numbers_are_checked(algo, message):
    with pytest.raises(ConfigError, match=message):
        resolve_settings({"preset": "ppo", **algo})


class TestReadingImpliesNeeding:
    """A function of the user's own that reads a field of its inputs needs what fills it, with or without a mark."""

    @pytest.fixture
    def own(self, tmp_path, monkeypatch):
        (tmp_path / "reading_losses.py").write_text(
            "from asyncrl.algo.inputs import LossInputs, LossOutputs\n"
            "def ratio(inputs: LossInputs) -> LossOutputs:\n"
            "    return LossOutputs(-inputs.log_ratio * inputs.need('advantages'))\n"
            "def named(inputs: LossInputs) -> LossOutputs:\n"
            "    return LossOutputs(-inputs.need('reference_logp') * inputs.mask)\n"
            "def field(given: LossInputs) -> LossOutputs:\n"
            "    return LossOutputs(-given.teacher_logp * given.mask)\n"
            "def plain(inputs: LossInputs) -> LossOutputs:\n"
            "    return LossOutputs(-inputs.logp * inputs.need('advantages'))\n"
        )
        monkeypatch.syspath_prepend(tmp_path)

    def test_a_loss_that_reads_the_ratio_needs_a_proximal_policy(self, own):
        words = needed(resolve_settings({"loss": {"name": "reading_losses:ratio"}}))
        assert "proximal" in words and "behavior" not in words

    def test_a_loss_that_asks_for_a_field_by_name_needs_it(self, own):
        assert "reference" in needed(resolve_settings({"loss": {"name": "reading_losses:named"}}))

    def test_a_loss_that_reads_an_extra_as_a_field_is_told_how_to_read_it(self, own):
        message = r"algo.loss: .*:field: read given.need\('teacher_logp'\) in place of given.teacher_logp"
        with pytest.raises(ConfigError, match=message):
            resolve_settings({"loss": {"name": "reading_losses:field"}})

    def test_a_proximal_policy_that_nothing_reads_is_refused(self, own):
        settings = {"loss": {"name": "reading_losses:plain"}, "proximal": {"name": "behavior"}}
        with pytest.raises(
            ConfigError, match=r"algo\.proximal: 'behavior' is read by no part of this objective"
        ):
            resolve_settings(settings)

    def test_a_proximal_policy_that_the_loss_reads_is_taken(self, own):
        settings = {"loss": {"name": "reading_losses:ratio"}, "proximal": {"name": "behavior"}}
        assert resolve_settings(settings)["proximal"]["name"] == "behavior"
