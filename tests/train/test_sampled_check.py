"""Extensions compare outputs of the pass that computes sampled tokens again, several of them at once."""

import numpy as np
import pytest

from asyncrl.config import parse_config
from asyncrl.train.features.sampled_check import SampledCheck
from asyncrl.train.loop.callbacks import Refusal
from asyncrl.train.step.step_batch import build_step_batch
from tests.train.one_step import make_engine, near_policy
from tests.train.test_logprob_check import SETTINGS, four

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
