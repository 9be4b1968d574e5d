"""The old-policy process gives the numbers of copies in the trainer, whichever version sampled a token."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from asyncrl.config import parse_config
from asyncrl.config_checks import check_objective
from asyncrl.data.codec import encode_group
from asyncrl.errors import ConfigError, ConflictError, InputError
from asyncrl.extensions.old_policy.client import OldPolicyClient
from asyncrl.extensions.old_policy.model import OldPolicyModel, Row, rows_of
from asyncrl.extensions.old_policy.old_policies import OldPolicies
from asyncrl.extensions.old_policy.service import OldPolicy, create_old_policy_app
from asyncrl.launch.machines.placement import plan
from asyncrl.launch.roles.roles import Roles
from asyncrl.train.models.loading import load_frozen
from asyncrl.train.step.step_batch import build_step_batch
from asyncrl.weights.files import write_weights
from tests.app_thread import AppThread
from tests.credentials import RUN
from tests.train.factories import group
from tests.train.one_step import Learner

SNAPSHOT = {"preset": "grpo", "proximal": {"name": "snapshot"}}
BUFFER = {"max_staleness": 2, "groups_per_step": 2}


class Settings:
    temperature = 1.0
    micro_batch_tokens = 10**6


def scorer(tiny_model, folder, micro_batch_tokens=10**6, temperature=1.0):
    return OldPolicyModel(load_frozen(tiny_model, "float32"), folder, temperature, micro_batch_tokens, "cpu")


def versions_of(tiny_model, folder, count):
    """Models of as many versions, whose weights are in the folder."""
    models = []
    for version in range(count):
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(100 * version + number)
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        write_weights(folder, version, model.named_parameters())
        models.append(model)
    return models


@torch.no_grad()
def logp_by_hand(model, token_ids, temperature=1.0):
    """[L] log-probabilities of the tokens after the first, from the logits alone."""
    ids = torch.tensor(np.asarray(token_ids))[None].long()
    logits = model(ids).logits[0].float() / temperature
    return [0.0] + [float(F.log_softmax(logits[t - 1], -1)[ids[0, t]]) for t in range(1, ids.shape[1])]


def test_each_token_of_a_sequence_is_scored_under_its_own_version(tiny_model, tmp_path):
    models = versions_of(tiny_model, tmp_path, 3)
    row = Row(
        np.array([7, 9, 11, 13, 15, 17], np.int32),
        np.array([False, True, True, False, True, True]),
        np.array([-1, 0, 0, -1, 2, 1], np.int32),
    )
    short = Row(
        np.array([5, 6, 8], np.int32), np.array([False, False, True]), np.array([-1, -1, 1], np.int32)
    )
    for tokens, temperature in ((10**6, 1.0), (6, 1.0), (10**6, 0.5)):
        found = scorer(tiny_model, tmp_path, tokens, temperature).score([row, short])
        by_version = [logp_by_hand(model, row.token_ids, temperature) for model in models]
        expected = [0.0, by_version[0][1], by_version[0][2], 0.0, by_version[2][4], by_version[1][5]]
        np.testing.assert_allclose(found[0], expected, atol=1e-5)
        last = logp_by_hand(models[1], short.token_ids, temperature)[2]
        np.testing.assert_allclose(found[1], [0.0, 0.0, last], atol=1e-5)
    assert abs(by_version[0][4] - by_version[2][4]) > 0.01


def test_a_version_without_weights_is_named(tiny_model, tmp_path):
    row = Row(np.array([5, 6], np.int32), np.array([False, True]), np.array([-1, 4], np.int32))
    with pytest.raises(InputError, match="the weights of version 4 are not in"):
        scorer(tiny_model, tmp_path).score([row])


class Buffer:
    """The part of a buffer that the process looks at: one group is ready."""

    def __init__(self, ready):
        self.ready = ready
        self.looks = 0

    async def status(self):
        return {"version": 1}

    async def peek(self, step, seen, wait_s):
        self.looks += 1
        if self.looks == 1:
            raise ConflictError("another version was committed")
        return [encode_group(one) for one in self.ready if one.id not in seen], False


def test_groups_that_are_ready_are_scored_before_the_trainer_asks(tiny_model, tmp_path):
    versions_of(tiny_model, tmp_path, 2)
    ready, stale = group("a", [0.0, 1.0], 1), group("b", [1.0, 0.0], 7)

    async def scenario():
        policy, buffer = OldPolicy(scorer(tiny_model, tmp_path), 100), Buffer([stale, ready])
        looking = asyncio.create_task(policy.look_ahead(buffer))
        while buffer.looks < 3:
            await asyncio.sleep(0.01)
        ahead = policy.scored_ahead
        found = await policy.score(rows_of(ready))
        looking.cancel()
        before = policy.answered_from_memory
        # A trainer that came back from a crash may write the version again, with other weights.
        versions_of(tiny_model, tmp_path, 2)
        write_weights(tmp_path, 1, load_frozen(tiny_model, "float32").model.named_parameters())
        return ahead, before, found, await policy.score(rows_of(ready)), policy.answered_from_memory

    ahead, before, found, again, after = asyncio.run(scenario())
    assert ahead == before == after == len(rows_of(ready))
    assert len(rows_of(ready)) > 0
    assert not np.allclose(found[0], again[0])


def test_two_steps_with_the_process_are_two_steps_with_copies(tiny_model, tmp_path):
    """Real steps: the same losses, gradients and split of the ratio, with half of the batch one version old."""
    service = OldPolicy(scorer(tiny_model, tmp_path), 100)
    app = AppThread(create_old_policy_app(service, RUN.access("old_policy")), tmp_path)
    try:
        client = OldPolicyClient(app.url, RUN.issue("trainer").bearer("old_policy"), 60.0, 5.0)
        plain, served = (Learner(tiny_model, SNAPSHOT, buffer=BUFFER) for _ in range(2))
        served.auxiliary.parts["snapshots"] = OldPolicies(tmp_path, 2, client)
        served.auxiliary.before_run(served.engine, 0)
        reports = [[], []]
        for step in range(2):
            batch = build_step_batch([group("a", [0.0, 1.0], 0), group("b", [1.0, 0.0], step)], step, 2)
            for learner, found in zip((plain, served), reports, strict=True):
                found.append(learner.step(batch).metrics)
        for alone, asked in zip(*reports, strict=True):
            for name in ("loss/total", "grad_norm", "split/engine_kl", "split/staleness_kl"):
                assert asked[name] == pytest.approx(alone[name], rel=1e-5, abs=1e-6), name
        assert reports[0][1]["split/staleness_kl"] != 0.0
        assert served.auxiliary.parts["snapshots"].versions == [0, 1, 2]
        other = OldPolicyClient(app.url, RUN.issue("worker", "w").bearer("engine"), 5.0, 0.0)
        with pytest.raises(ConfigError, match="token"):
            other.score(
                [Row(np.array([5, 6], np.int32), np.array([False, True]), np.array([-1, 0], np.int32))]
            )
    finally:
        app.close()


def test_versions_beyond_the_limit_are_dropped_and_a_checkpoint_brings_the_others_back(tiny_model, tmp_path):
    learner = Learner(tiny_model, SNAPSHOT, buffer=BUFFER)
    kept = OldPolicies(tmp_path / "a", 1, None)
    for version in range(3):
        kept.remember(learner.engine, version)
        learner.step()
    assert kept.versions == [1, 2]
    again = OldPolicies(tmp_path / "b", 1, None)
    again.load_state_dict(kept.state_dict())
    assert again.versions == [1, 2]
    row = Row(np.array([5, 6], np.int32), np.array([False, True]), np.array([-1, 1], np.int32))
    first, second = (scorer(tiny_model, tmp_path / name).score([row])[0] for name in "ab")
    np.testing.assert_array_equal(first, second)


def test_a_process_that_nothing_would_ask_is_refused():
    sections = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "train": {"old_policy": "process"}}
    with pytest.raises(
        ConfigError, match=r"train\.old_policy: 'process' scores tokens for an objective that reads"
    ):
        check_objective(parse_config(sections))
    check_objective(parse_config({**sections, "algo": SNAPSHOT}))


PROCESS = {
    "model": {"path": "m"},
    "env": {"name": "gridworld"},
    "algo": SNAPSHOT,
    "train": {"old_policy": "process"},
}


@pytest.mark.parametrize(
    ("chosen", "line", "gpu"),
    [
        (
            [],
            "3 GPUs: trainer 0, engine-0 1, unused 2 (engine.count and train.ranks say how many are used)",
            "0",
        ),
        ([0], "3 GPUs: trainer 1, engine-0 2, old policy 0", "0"),
    ],
)
def test_the_process_has_the_trainers_gpu_or_one_of_its_own(chosen, line, gpu):
    config = parse_config({**PROCESS, "placement": {"old_policy": chosen}})
    placement = plan(config, ["0", "1", "2"])
    assert str(placement) == line
    assert placement.beside_env("old_policy")["CUDA_VISIBLE_DEVICES"] == gpu


def test_a_gpu_for_a_process_that_is_not_there_is_refused():
    sections = {**PROCESS, "train": {}, "algo": {}, "placement": {"old_policy": [1]}}
    with pytest.raises(
        ConfigError, match=r"placement\.old_policy must be left out without train\.old_policy='process'"
    ):
        parse_config(sections)


def test_its_trainer_is_told_the_file_of_its_address_by_its_role(process_group, tmp_path):
    roles = Roles(parse_config(PROCESS), tmp_path, "m", tmp_path / "weights", process_group=process_group)
    roles.main.buffer = SimpleNamespace(name="buffer", url="http://buffer:1")
    assert "--beside" not in roles.main._trainer_argv()
    roles.main.beside["old_policy"] = SimpleNamespace(name="old-policy", url="http://old:1")
    argv = roles.main._trainer_argv()
    assert argv[argv.index("--beside") + 1] == f"old_policy=@{tmp_path}/endpoints/trainer-old-policy.json"
