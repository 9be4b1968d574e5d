"""What is wrong with a run is said with its numbers, and nothing is said about a healthy one."""

import re

import pytest

from asyncrl.config import Config
from asyncrl.extensions.settings import composed
from asyncrl.run import diagnosis
from asyncrl.run.diagnosis import RULES, Observed, diagnose, rules
from asyncrl.run.observe import RunObserver
from tests.run.folders import add_step, make_run


def healthy(step):
    """Metrics like those of a run of gridworld_grpo that learns."""
    return {
        "step": step, "reward/mean": min(0.95, 0.3 + 0.04 * step), "reward/std": 0.4, "batch/sequences": 256,
        "success/mean": min(0.95, 0.3 + 0.04 * step), "group/zero_variance_fraction": 0.3, "buffer/admitted": 32 * step,
        "buffer/dropped": 3 * step, "buffer/episodes": 500 * step, "ess/sequence": 0.9, "clip_fraction": 0.02,
        "staleness/mean": 0.5, "logprob_check/error": 1e-6, "length/truncated_fraction": 0.01, "length/mean": 80.0,
        "mismatch/perplexity_behavior": 1.5, "time/wait_s": 0.5, "time/train_s": 1.5, "time/publish_s": 0.1,
    }  # fmt: skip


def steps(count=30, **changes):
    """Healthy steps but for `changes`: values, or functions of the step."""
    return [
        healthy(step)
        | {name.replace("__", "/"): v(step) if callable(v) else v for name, v in changes.items()}
        for step in range(1, count + 1)
    ]


def sample(running=4, waiting=0, kv_usage=0.5, cpu=0.5, own=0.9, **buffer):
    return {
        "engines": {"engine-0": {"running": running, "waiting": waiting, "kv_usage": kv_usage, "paused": False}},
        "buffer": {"slots": 4, **buffer}, "processes": {"engine-0": own}, "cpu": cpu, "cores": 2,
    }  # fmt: skip


FAILURES = [
    {"failure": "environment", "episodes": 900, "groups": 9, "first": "Traceback\nValueError: no board"},
    {"failure": "agent", "episodes": 9000, "groups": 0, "first": "gave up"},
]
DEATHS = [{"name": "engine-0", "why": "was killed by signal 9"}] * 3
GARBAGE = {
    "url": "http://h:1",
    "garbage": True,
    "failures": 37,
    "for_s": 6.0,
    "error": "NaN",
    "sound_engines": 0,
}
WAITS = {"time__wait_s": 8.0, "time__train_s": 1.0}
LOW = {"success__mean": 0.2, "reward__mean": lambda s: 0.02 * s}

CASES = {
    "failed_episodes": (
        Observed(steps(), failures=FAILURES),
        "900 of 15000 .* environment; the first: ValueError: no board",
    ),
    "engine_troubles": (
        Observed(steps(), activity=[{"engine_troubles": [GARBAGE]}]),
        "http://h:1 answers with garbage: 37 requests or probes of a worker in 6 s; the last: NaN",
    ),
    "restarts": (Observed(steps(), restarts=DEATHS), "engine-0 was restarted 3 times.*killed by signal 9"),
    "skipped_steps": (
        Observed(steps(skipped=lambda s: "not finite" if s > 28 else "")),
        "of the last 10 steps 2 were skipped.*the last: not finite",
    ),
    "collapse": (
        Observed(steps(reward__mean=lambda s: 0.9 if s < 20 else 0.3)),
        r"the last 5 steps is 0\.300; it was 0\.900 around step 3",
    ),
    "no_signal": (Observed(steps(group__zero_variance_fraction=0.8, **LOW)), "80% of the groups carry no signal"),
    "flat_reward": (Observed(steps(reward__mean=0.4)), r"the last 10 steps \(0\.400\) is that of the first \(0\.400\)"),
    "entropy_collapse": (
        Observed(steps(mismatch__perplexity_behavior=lambda s: 1.5 if s < 10 else 1.001, **LOW)),
        r"0\.0010 nats each, 0\.4055 at the start",
    ),
    "ratio_drift": (Observed(steps(ess__sequence=0.2)), "effective sample size is 0.20 .* 2% of the tokens"),
    "engine_mismatch": (Observed(steps(logprob_check__error=0.1)), "differ by 0.100 nats"),
    "truncated": (Observed(steps(length__truncated_fraction=0.5)), "50% of the episodes were cut off"),
    "shrinking": (
        Observed(steps(length__mean=lambda s: 80 if s < 15 else 20, reward__mean=lambda s: 0.3 + 0.001 * s)),
        "20 tokens, 80 at the start",
    ),
    "waiting_trainer": (
        Observed(steps(**WAITS), [sample()] + [sample(0, in_flight=2)] * 3),
        "88% of the time; engines: episodes wait for their environments 75%, decoding 25%",
    ),
    "slow_publish": (Observed(steps(time__publish_s=2.0)), "takes 50% of a step, 2.0 s"),
    "full_cache": (Observed(steps(), [sample(waiting=5, kv_usage=0.99)] * 20), "full KV cache in 100% of the samples"),
    "loaded_machine": (Observed(steps(), [sample(cpu=1.0, own=0.8)] * 20), "2 cores are 100% busy, 0.8 of them"),
}  # fmt: skip


def test_rewards_of_both_sides_of_a_game_cancel_out_and_say_nothing_of_learning():
    rewards = {"reward__mean": lambda step: 0.02 * (step % 2)}
    assert diagnose(Observed(steps(**rewards, reward__min=-1.0))) == []
    assert [found.rule for found in diagnose(Observed(steps(**rewards, reward__min=0.0)))] == ["flat_reward"]


def test_a_healthy_run_has_nothing_that_stands_out():
    assert diagnose(Observed(steps(), [sample()] * 60)) == []


def test_a_run_that_has_just_begun_has_nothing_that_stands_out():
    assert diagnose(Observed(steps(2))) == []
    assert diagnose(Observed(())) == []


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_says_what_it_sees_with_numbers(rule):
    observed, expected = CASES[rule]
    found = {finding.rule: finding.what for finding in diagnose(observed)}
    assert re.search(expected, found[rule]), found[rule]


def test_every_rule_is_tested():
    assert {rule.__name__ for rule in RULES} == set(CASES)


def test_a_rule_of_an_extension_takes_the_place_of_one_of_its_name():
    found = {rule.__name__: rule.__module__ for rule in rules()}
    assert found.keys() >= CASES.keys()
    assert found["collapse"] == "asyncrl.extensions.league.diagnosis"
    assert found["no_signal"] == "asyncrl.run.diagnosis"
    assert len(found) == len(rules())


def test_failures_come_first_and_slowness_last():
    observed = Observed(steps(ess__sequence=0.2, **WAITS), [sample()], failures=FAILURES)
    assert [finding.kind for finding in diagnose(observed)] == ["failing", "not learning", "slow"]


def test_what_the_trainer_waits_for_decides_the_advice():
    def advice(*samples):
        return next(
            f for f in diagnose(Observed(steps(**WAITS), samples)) if f.rule == "waiting_trainer"
        ).advice

    assert "engine.count" in advice(sample())
    assert "env.processes" in advice(sample(0, in_flight=2))
    assert "buffer.max_staleness" in advice(sample(0, ready=4))


def test_advice_names_settings_that_there_are():
    said = " ".join(f.advice for observed, _ in CASES.values() for f in diagnose(observed))
    said += " ".join(diagnosis._FOR_CAUSE.values())
    named = set(re.findall(r"\b([a-z]+)\.([a-z_]+)", said)) - {("e", "g")}
    assert len(named) > 15
    for section, key in named:
        model = composed(Config).model_fields[section].annotation
        assert section == "algo" or key in model.model_fields, f"{section}.{key}"


def test_a_warning_is_given_once_and_slowness_is_none(tmp_path):
    folder = make_run(tmp_path / "run", steps=0)
    observer = RunObserver(folder)
    for one in steps(10, ess__sequence=0.2, **WAITS):
        add_step(folder, **one)
    assert [finding.rule for finding in observer.new_warnings()] == ["ratio_drift"]
    assert observer.new_warnings() == []
    assert "waiting_trainer" in {finding.rule for finding in observer.findings()}
