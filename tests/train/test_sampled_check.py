"""Extensions compare outputs of the pass that computes sampled tokens again, several of them at once."""

import numpy as np
import pytest

from asyncrl.config import parse_config
from asyncrl.train.features.sampled_check import SampledCheck, compared_versions
from asyncrl.train.loop.callbacks import Refusal
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.weights.files import write_weights
from tests.train.one_step import make_engine, near_policy, step_once
from tests.train.test_logprob_check import SETTINGS, four, made_up

CONFIG = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})


class Seeing:
    """Keeps what it is given of an output, and refuses the groups it was told to."""

    def __init__(self, output, *refused):
        self.output, self.refused = output, refused
        self.seen = {}

    def refuses(self, engine, batch, computed):
        self.seen = computed
        reason = f"{self.output} of {', '.join(self.refused)}"
        return Refusal(self.refused, reason, {"e0": self.refused}) if self.refused else None

    def metrics(self):
        return {f"{self.output}/rows": float(len(self.seen))}


@pytest.fixture(scope="module")
def engine(tiny_model):
    return make_engine(tiny_model)


def refusal(engine, check):
    batch = build_step_batch(near_policy(engine, four(), noise=0.0), 3, 1)
    return check.refuses(engine, batch, SETTINGS)


def test_each_check_gets_its_output_of_every_compared_token_and_adds_its_metrics(engine):
    checks = [Seeing("states"), Seeing("entropy"), Seeing("states")]
    check = SampledCheck(CONFIG, None, checks)
    assert refusal(engine, check) is None
    states, entropy, again = (one.seen for one in checks)
    assert again is states
    assert sorted(states) == sorted(entropy) == list(range(16))
    assert {value.shape for value in states.values()} == {(6, engine.hidden_size)}
    assert {value.shape for value in entropy.values()} == {(6, 1)}
    assert not any(np.isnan(value).any() for value in (*states.values(), *entropy.values()))
    metrics = check.metrics(3)
    assert (metrics["states/rows"], metrics["entropy/rows"], metrics["logprob_check/tokens"]) == (16, 16, 96)


def test_what_several_checks_refuse_is_refused_once_with_all_reasons_and_blames_no_engine(engine):
    check = SampledCheck(CONFIG, None, [Seeing("states", "g-t1", "g-t2"), Seeing("entropy", "g-t2")])
    found = refusal(engine, check)
    assert (found.groups, dict(found.engines)) == (["g-t1", "g-t2"], {})
    assert found.reason == "states of g-t1, g-t2; entropy of g-t2"


def test_without_further_checks_only_log_probabilities_are_computed(engine):
    check = SampledCheck(CONFIG, None)
    assert refusal(engine, check) is None
    assert check.metrics(3).keys() == {
        "logprob_check/error", "logprob_check/worst_token", "logprob_check/tokens", "logprob_check/earlier_tokens",
    }  # fmt: skip


def with_limit(limit, **train):
    return parse_config(
        {
            "model": {"path": "m"},
            "env": {"name": "gridworld"},
            "buffer": {"max_staleness": limit},
            "train": train,
        }
    )


@pytest.fixture
def started(tiny_model):
    return make_engine(tiny_model)


def after_a_step(engine, check, groups):
    """Return what is said of groups that claim version 3 a step after it, the first that was trained."""
    first = build_step_batch(near_policy(engine, four(), noise=0.0), 3, 1)
    assert check.refuses(engine, first, SETTINGS) is None
    step_once(engine)
    return check.refuses(engine, build_step_batch(groups, 4, 1), SETTINGS)


def test_tokens_of_the_version_that_training_starts_from_are_compared_a_step_later(started, tmp_path):
    sampled = near_policy(started, four(), noise=0.0)
    forged = [made_up(sampled[0]), *sampled[1:]]
    check = SampledCheck(with_limit(1), tmp_path)
    refused = after_a_step(started, check, forged)
    assert refused.groups == ["g-t0"]
    assert check.metrics(4)["logprob_check/earlier_tokens"] == 96
    assert check.refuses(started, build_step_batch(sampled, 4, 1), SETTINGS) is None
    assert [path.name for path in tmp_path.iterdir()] == ["weights-00000003.safetensors"]


@pytest.mark.parametrize("config", [with_limit(0), with_limit(1, max_logp_error=0.0)])
def test_no_weights_are_written_for_tokens_that_are_not_compared(started, tmp_path, config):
    after_a_step(started, SampledCheck(config, tmp_path), near_policy(started, four(), noise=0.0))
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_was_published_is_not_written_again(started, tmp_path):
    path = tmp_path / "weights-00000003.safetensors"
    write_weights(tmp_path, 3, started.checkpoint())
    before = path.stat().st_ino
    after_a_step(started, SampledCheck(with_limit(1), tmp_path), near_policy(started, four(), noise=0.0))
    assert path.stat().st_ino == before


def test_weights_that_find_no_room_are_said_and_training_goes_on(started, tmp_path, caplog):
    file = tmp_path / "a file"
    file.write_text("where a folder should be")
    sampled = near_policy(started, four(), noise=0.0)
    assert after_a_step(started, SampledCheck(with_limit(1), file / "weights"), sampled) is None
    assert "tokens of version 3 are not compared later" in caplog.text


@pytest.mark.parametrize(
    ("limit", "stage", "compared"), [(0, 1, 0), (1, 1, 1), (4, 1, 4), (4, 2, 4), (4, 3, 1)]
)
def test_as_many_versions_are_compared_as_tokens_may_be_old(limit, stage, compared):
    assert compared_versions(with_limit(limit, zero_stage=stage)) == compared
    assert compared_versions(with_limit(limit, zero_stage=stage, max_logp_error=0.0)) == 0
