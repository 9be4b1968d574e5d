"""Training steps: what the model computes, what a batch refuses, what a split must not change."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from asyncrl.algo.objective import build_objective
from asyncrl.config import TrainConfig
from asyncrl.errors import StaleError
from asyncrl.train.anchors import Anchors
from asyncrl.train.batch import advantage_batch, build_step_batch, pad_rows
from asyncrl.train.engine import TrainEngine
from asyncrl.train.policy import load_policy
from asyncrl.train.step import StepSettings, split_minibatches, train_step
from asyncrl.types import FailureClass, Group, Status, Task, Trajectory, Turn

VOCAB = 250


def make_group(number, version=3, episodes=4, seed=0):
    rng = np.random.default_rng(seed * 1000 + number)
    trajectories = []
    for episode in range(episodes):
        prompt, sampled = int(rng.integers(5, 20)), int(rng.integers(2, 12))
        length = prompt + sampled
        mask = np.arange(length) >= prompt
        trajectories.append(
            Trajectory(
                task_id=f"t{number}",
                episode_index=episode,
                token_ids=rng.integers(5, VOCAB, length).astype(np.int32),
                loss_mask=mask,
                behavior_logprobs=np.where(mask, -rng.uniform(3, 6, length), 0).astype(np.float32),
                versions=np.where(mask, version, -1).astype(np.int32),
                turns=(Turn(prompt, length, float(episode % 2)),),
                reward=float(episode % 2),
                status=Status.FINISHED,
            )
        )
    return Group(f"g{number}", Task(f"t{number}", "gridworld"), version, tuple(trajectories))


def test_the_policy_model_gives_the_log_softmax_of_the_plain_model(tiny_model):
    policy = load_policy(tiny_model, "float32")
    rows = pad_rows(build_step_batch([make_group(0)], 3, 0), range(4))
    logp, entropy = policy(rows.token_ids, rows.mask, 0.7, entropy=True)
    full = torch.log_softmax(policy.model(rows.token_ids).logits / 0.7, -1)
    shifted = full[:, :-1].gather(-1, rows.token_ids[:, 1:, None]).squeeze(-1)
    expected = torch.where(rows.mask[:, 1:], shifted, 0.0)
    torch.testing.assert_close(logp[:, 1:], expected, atol=1e-5, rtol=0)
    plain = -(full.exp() * full).sum(-1)[:, :-1]
    torch.testing.assert_close(entropy[:, 1:], torch.where(rows.mask[:, 1:], plain, 0.0), atol=1e-5, rtol=0)
    assert (logp[~rows.mask] == 0).all()


def test_a_row_gives_the_same_numbers_alone_and_beside_longer_ones(tiny_model):
    policy = load_policy(tiny_model, "float32")
    batch = build_step_batch([make_group(0)], 3, 0)
    together, _ = policy(*_ids_mask(pad_rows(batch, range(4))), 1.0)
    for row in range(4):
        alone, _ = policy(*_ids_mask(pad_rows(batch, [row])), 1.0)
        torch.testing.assert_close(together[row, : alone.shape[1]], alone[0], atol=1e-5, rtol=0)


def _ids_mask(rows):
    return rows.token_ids, rows.mask


@pytest.mark.parametrize(
    ("step", "bound", "fine"), [(3, 0, True), (4, 1, True), (4, 0, False), (6, 2, False), (2, 5, False)]
)
def test_a_batch_with_a_token_outside_the_bound_is_never_built(step, bound, fine):
    if fine:
        assert build_step_batch([make_group(0, version=3)], step, bound).step == step
    else:
        with pytest.raises(StaleError, match="versions 3 to 3"):
            build_step_batch([make_group(0, version=3)], step, bound)


def test_failed_episodes_are_left_out_of_the_batch_and_its_statistics():
    group = make_group(0)
    failed = Trajectory(
        "t0", 9, np.empty(0, np.int32), np.empty(0, bool), np.empty(0, np.float32), np.empty(0, np.int32), (),
        100.0, Status.FAILED, failure=FailureClass.INFRASTRUCTURE,
    )  # fmt: skip
    broken = Group(group.id, group.task, group.version, (*group.trajectories, failed))
    batch = build_step_batch([broken], 3, 0)
    assert len(batch.trajectories) == 4
    assert advantage_batch(batch).rewards.max() == 1.0


def test_rows_are_ordered_by_task_and_episode_whatever_order_groups_arrive_in():
    groups = [make_group(n) for n in (2, 0, 1)]
    batch = build_step_batch(groups, 3, 0)
    assert [(t.task_id, t.episode_index) for t in batch.trajectories] == [
        (f"t{n}", e) for n in range(3) for e in range(4)
    ]
    assert batch.group.tolist() == [n for n in range(3) for _ in range(4)]


def test_minibatches_keep_groups_together():
    batch = build_step_batch([make_group(n) for n in range(5)], 3, 0)
    parts = split_minibatches(batch, list(range(20)), 2)
    assert sorted(sum(parts, [])) == list(range(20))
    assert not {int(batch.group[r]) for r in parts[0]} & {int(batch.group[r]) for r in parts[1]}


def run_step(model, micro_batch_tokens, zero_stage=0, preset="decoupled_ppo"):
    engine = TrainEngine(
        load_policy(model, "float32"), TrainConfig(learning_rate=1e-3, zero_stage=zero_stage), "float32"
    )
    objective = build_objective({"preset": preset})
    batch = build_step_batch([make_group(n) for n in range(4)], 3, 0)
    settings = StepSettings(1.0, micro_batch_tokens, 1, 64.0)
    report = train_step(engine, objective, Anchors(objective), batch, settings, 1e-3)
    return report, {name: tensor.clone() for name, tensor in engine.weights()}, engine


@pytest.mark.parametrize("preset", ["decoupled_ppo", "grpo", "gspo"])
def test_the_cut_into_micro_batches_changes_nothing(tiny_model, preset):
    whole, weights, _ = run_step(tiny_model, 10**6, preset=preset)
    for budget in (120, 1):
        cut, cut_weights, _ = run_step(tiny_model, budget, preset=preset)
        assert cut.metrics["grad_norm"] == pytest.approx(whole.metrics["grad_norm"], rel=1e-4)
        assert cut.metrics["loss/total"] == pytest.approx(whole.metrics["loss/total"], rel=1e-4, abs=1e-6)
        for name, tensor in weights.items():
            torch.testing.assert_close(cut_weights[name], tensor, atol=2e-4, rtol=0)


def test_a_step_moves_probability_towards_what_earned_more(tiny_model):
    batch = build_step_batch([make_group(n) for n in range(4)], 3, 0)
    rows = pad_rows(batch, range(16))
    good = torch.tensor([t.reward > 0 for t in batch.trajectories])
    before, _ = load_policy(tiny_model, "float32")(rows.token_ids, rows.mask, 1.0)
    _, _, engine = run_step(tiny_model, 10**6)
    with torch.no_grad():
        after, _ = engine.logp(rows.token_ids, rows.mask, 1.0)
    change = (after - before).sum(-1)
    assert change[good].mean() > change[~good].mean()


RANKS = """
import json, sys
from tests.train.test_step import run_step
report, weights, engine = run_step(sys.argv[1], 100, int(sys.argv[2]))
if engine.rank == 0:
    total = sum(float(t.double().abs().sum()) for t in weights.values())
    print("RESULT" + json.dumps([report.metrics["grad_norm"], report.metrics["loss/total"], total]))
else:
    assert weights
"""


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_two_ranks_take_the_step_of_one(tiny_model, tmp_path, zero_stage):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)

    def run(ranks):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
        done = subprocess.run(
            [*command, str(script), tiny_model, str(zero_stage)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(x for x in done.stdout.splitlines() if "RESULT" in x)
        return json.loads(line.split("RESULT")[1])

    assert run(2) == pytest.approx(run(1), rel=1e-4)
