"""What a version has sampled is scored before it is replaced, and gives the numbers of copies of its weights."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.config_checks import check_objective
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.errors import ConfigError
from asyncrl.extensions.old_policy.interruption import interrupt
from asyncrl.extensions.old_policy.sampled import Sequence
from asyncrl.extensions.old_policy.scored_tokens import prefix_hashes
from asyncrl.extensions.old_policy.scored_versions import Interrupting, ScoredVersions
from asyncrl.generation import GenerateRequest
from asyncrl.services.engine.client import EngineClient
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import NOT_SAMPLED, Turn
from asyncrl.weights.files import write_weights
from asyncrl.weights.publish import FilePublisher
from tests.train.factories import group
from tests.train.one_step import Learner, make_engine
from tests.train.scripted_run import Scripted, make_trainer

SNAPSHOT = {"preset": "grpo", "proximal": {"name": "snapshot"}}
BUFFER = {"max_staleness": 2, "groups_per_step": 2}
INTERRUPT = {"old_policy": "interrupt"}
LIMIT_S = 60.0


def test_two_steps_with_interruptions_are_two_steps_with_copies(tiny_model):
    """With a group that the first version has sampled and the second step trains."""
    learners = [Learner(tiny_model, SNAPSHOT, buffer=BUFFER) for _ in range(2)]
    first, second, later = group("a", [0.0, 1.0]), group("b", [1.0, 0.0]), group("c", [0.0, 1.0], 1)
    sequences = [
        Sequence(t.token_ids.tobytes(), tuple((turn.start, turn.end) for turn in t.turns))
        for t in (*first.trajectories, *second.trajectories)
    ]
    asked = []
    scored = ScoredVersions(2, lambda version: asked.append(version) or sequences)
    learners[1].auxiliary.parts["snapshots"] = scored
    reports = []
    for step, groups in enumerate(([first], [second, later])):
        batch = build_step_batch(groups, step, 2)
        assert scored.missing(batch) == {}
        reports.append([learner.step(batch).metrics for learner in learners])
    for copies, interrupted in reports:
        for name in ("loss/total", "grad_norm", "split/engine_kl", "split/staleness_kl"):
            assert interrupted[name] == pytest.approx(copies[name], rel=1e-5, abs=1e-6), name
    assert asked == [0, 1]
    assert reports[1][1]["split/staleness_kl"] != 0.0
    # What the step trains itself is left out.
    num_tokens = sum(t.num_sampled for t in second.trajectories)
    assert reports[0][1]["old_policy/scored_tokens"] == num_tokens == 12
    counts = [reports[1][1][f"old_policy/{name}_tokens"] for name in ("older", "missing")]
    assert counts == [num_tokens, 0]


def test_episodes_that_begin_alike_are_scored_though_other_versions_have_sampled_them(tiny_model):
    """An episode in training began under version 0, and one with the same tokens under version 1."""
    learner, alike = Learner(tiny_model, SNAPSHOT, buffer=BUFFER), group("a", [0.0, 1.0], 1)
    sequences = [
        Sequence(t.token_ids[: t.turns[0].end].tobytes(), ((t.turns[0].start, t.turns[0].end),))
        for t in alike.trajectories
    ]
    scored = learner.auxiliary.parts["snapshots"] = ScoredVersions(
        2, lambda version: sequences if version else []
    )
    began_before = []
    for t in alike.trajectories:
        versions = t.versions.copy()
        versions[t.turns[0].start : t.turns[0].end] = 0
        began_before.append(replace(t, versions=versions))
        places = np.arange(t.turns[0].start, t.turns[0].end)
        scored.tokens.add(0, prefix_hashes(t.token_ids, places), np.full(len(places), -5.0))
    learner.step(build_step_batch([replace(alike, trajectories=tuple(began_before))], 1, 2))
    assert scored.missing(build_step_batch([alike], 2, 2)) == {}
    assert scored.tokens.num_tokens(1) == 12


def test_groups_with_tokens_of_no_known_version_are_named(tiny_model):
    scored = ScoredVersions(1)
    old, new = group("a", [0.0, 1.0]), group("b", [1.0, 0.0], 1)
    assert scored.missing(build_step_batch([old, new], 1, 1)) == {old.id: 12}
    assert scored.after_step(None, 2, {})["old_policy/missing_tokens"] == 12.0


class Replacing(Scripted):
    """Its second batch has a group that cannot be scored any more, until that is sampled again."""

    def fail_taken(self, step, group_ids, reason):
        self.calls.append(("fail_taken", step, list(group_ids)))
        self.reason = reason
        self.batches[step] = {
            name: body if name not in group_ids else encode_group(_as_of(decode_group(body), step))
            for name, body in self.batches[step].items()
        }
        return len(group_ids)

    url = "the engine"

    def ask(self, question):
        return asyncio.run(question(FilePublisher("no folder", [self])))

    async def request(self, path, body, timeout_s):
        self.calls.append((path, body["finish_requests"]))
        return {"version": 0, "sequences": []}


def _as_of(old, version):
    rows = [
        replace(t, versions=np.where(t.loss_mask, version, NOT_SAMPLED).astype(np.int32))
        for t in old.trajectories
    ]
    return replace(old, version=version, trajectories=tuple(rows))


def test_a_group_that_cannot_be_scored_is_given_back_and_the_rest_is_trained(tiny_model):
    lost, fresh = group("a", [0.0, 1.0], 0), group("b", [1.0, 0.0], 1)
    script = Replacing([[group("c", [0.0, 1.0], 0)], [lost, fresh]])
    scored = ScoredVersions(1)
    asking = [Interrupting(scored, 1.0)]
    trainer = make_trainer(make_engine(tiny_model), script, 2, snapshots=scored, callbacks=asking, **SNAPSHOT)
    assert trainer.run() == 2
    calls = [call for call in script.calls if call[0] != "peek"]
    assert calls.index(("weights/interrupt", False)) < calls.index(("publish", 1))
    assert calls[calls.index(("fail_taken", 1, [lost.id])) + 1] == ("take", 1)
    assert "old log-probabilities of 12 tokens in 1 groups are missing" in script.reason


@pytest.fixture
def served(engine_url, engine_weights):
    """What gives the session's engine weights of its next version."""

    async def commit(client, version, tensors):
        file = write_weights(engine_weights, version, tensors)
        for phase in ("prepare", "commit"):
            answer = await client.request(f"weights/{phase}", file.to_json())
        return answer

    return commit


def request(name, prompt, num_tokens):
    return GenerateRequest(name, np.asarray(prompt, np.int32), num_tokens)


def trajectory_of(like, prompt, generated, index):
    """A trajectory of one turn that an engine has sampled."""
    start, length = len(prompt), len(prompt) + len(generated.token_ids)
    mask = np.arange(length) >= start
    logprobs, versions = np.zeros(length, np.float32), np.full(length, NOT_SAMPLED, np.int32)
    logprobs[start:], versions[start:] = generated.logprobs, generated.versions
    return replace(
        like,
        episode_index=index,
        token_ids=np.concatenate([prompt, generated.token_ids]).astype(np.int32),
        loss_mask=mask,
        behavior_logprobs=logprobs,
        versions=versions,
        turns=(Turn(start, length, like.reward),),
    )


@pytest.mark.slow
def test_what_an_engine_samples_on_both_sides_of_an_update_is_scored_as_copies_score_it(
    tiny_model, engine_url, engine_weights, served, tmp_path
):
    plain, asking = (Learner(tiny_model, SNAPSHOT, buffer=BUFFER) for _ in range(2))
    scored = asking.auxiliary.parts["snapshots"] = ScoredVersions(2)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 250, 20) for _ in range(3)]

    async def scenario():
        client = EngineClient(engine_url)
        publisher, loop = FilePublisher(tmp_path, [client]), asyncio.get_running_loop()

        def interrupted(version):
            asked = interrupt(publisher, version, LIMIT_S)
            return asyncio.run_coroutine_threadsafe(asked, loop).result(LIMIT_S)

        scored.interrupt = interrupted
        base = (await client.state())["version"] + 1
        await served(client, base, plain.engine.weights())
        for learner in (plain, asking):
            learner.auxiliary.before_run(learner.engine, base)
        going = [
            asyncio.ensure_future(client.generate(request(f"going-{i}", prompt, 200)))
            for i, prompt in enumerate(prompts)
        ]
        ended = await client.generate(request("ended", prompts[0], 10))
        # However fast it is, it does not end before the step asks again.
        early = await interrupt(publisher, base, LIMIT_S)
        batch = build_step_batch([group("a", [0.0, 1.0], base)], base, 2)
        for learner in (plain, asking):
            report = await asyncio.to_thread(learner.step, batch)
        frozen = (await client.state())["paused"]
        committed = await served(client, base + 1, asking.engine.weights())
        found = [ended, *(await asyncio.gather(*going))]
        await client.close()
        assert frozen
        assert committed["pause_s"] >= report.metrics["old_policy/interrupt_s"]
        assert report.metrics["old_policy/scored_tokens"] == sum(int(s.sampled.sum()) for s in early)
        return base, found

    base, found = asyncio.run(scenario())
    crossing = [one for one in found if set(one.versions.tolist()) == {base, base + 1}]
    assert len(crossing) >= 2
    like = group("b", [1.0, 0.0, 1.0, 0.0], base)
    rows = [
        trajectory_of(t, prompt, one, i)
        for i, (t, prompt, one) in enumerate(
            zip(like.trajectories, [prompts[0], *prompts], found, strict=True)
        )
    ]
    batch = build_step_batch([replace(like, trajectories=tuple(rows))], base + 1, 2)
    assert scored.missing(batch) == {}
    copies, kept = (
        learner.auxiliary.parts["snapshots"]
        .logp(learner.engine, batch, StepSettings.of(learner.config))
        .values
        for learner in (plain, asking)
    )
    torch.testing.assert_close(kept, copies, rtol=0, atol=1e-5)
    rows = pad_rows(batch, range(4))
    with torch.no_grad():
        current = asking.engine.logp(rows.token_ids, rows.mask, 1.0)[rows.mask]
    older = torch.from_numpy(np.concatenate([t.versions[t.loss_mask] for t in batch.trajectories]) == base)
    assert float((current - copies)[older].abs().max()) > 1e-3
    assert float((current - copies)[~older].abs().max()) < 1e-5


@pytest.mark.slow
def test_an_engine_whose_trainer_does_not_come_back_goes_on(engine_url, tmp_path):
    async def scenario():
        client = EngineClient(engine_url)
        publisher = FilePublisher(tmp_path, [client])
        version = (await client.state())["version"]
        going = asyncio.ensure_future(client.generate(request("a", [5, 6, 7], 100)))
        await client.generate(request("b", [5, 6, 7, 8], 2))
        assert await interrupt(publisher, version + 1, 1.0) == []
        found = await interrupt(publisher, version, 1.0)
        generated = await going
        await client.close()
        whole = [5, 6, 7, *generated.token_ids.tolist()]
        (part,) = [one for one in found if one.token_ids.tolist() == whole[: len(one.token_ids)]]
        return part, len(whole)

    part, length = asyncio.run(scenario())
    assert part.spans == ((3, len(part.token_ids)),)
    assert len(part.token_ids) <= length


CAN = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "train": INTERRUPT, "algo": SNAPSHOT}


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        (
            {"algo": {"preset": "grpo"}},
            r"train\.old_policy: 'interrupt' scores tokens for an objective that reads",
        ),
        (
            {"train": {**INTERRUPT, "schedule": "one_step_off"}},
            r"train\.schedule must be 'asynchronous' or 'partial'",
        ),
        ({"buffer": {"max_staleness": 0}}, r"buffer\.max_staleness must be above 0"),
        ({"lora": {"rank": 4}}, r"lora\.rank must be 0"),
        ({"scale": {"engine": [1, 2]}}, r"scale\.engine must be left out"),
    ],
)
def test_what_engines_could_not_say_is_refused(sections, problem):
    check_objective(parse_config(CAN))
    with pytest.raises(ConfigError, match=problem):
        check_objective(parse_config({**CAN, **sections}))
