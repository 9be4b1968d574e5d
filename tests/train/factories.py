"""Groups with real-looking token arrays for the trainer's tests."""

from __future__ import annotations

import numpy as np

from asyncrl.types import NOT_SAMPLED, FailureClass, Group, Status, Task, Trajectory, Turn


def trajectory(
    task_id: str = "t0",
    index: int = 0,
    turns: int = 2,
    reward: float = 0.0,
    version: int = 0,
    failure: FailureClass | None = None,
    vocab_size: int = 250,
) -> Trajectory:
    """`turns` turns of 5 context and 3 sampled tokens each, and as many more context tokens as `index`."""
    length = 8 * turns + index
    rng = np.random.default_rng([index, *task_id.encode()])
    mask = np.zeros(length, bool)
    spans = [(index + 8 * k + 5, index + 8 * k + 8) for k in range(turns)]
    for start, end in spans:
        mask[start:end] = True
    return Trajectory(
        task_id=task_id,
        episode_index=index,
        token_ids=rng.integers(5, vocab_size, length).astype(np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -5.5, 0.0).astype(np.float32),
        versions=np.where(mask, version, NOT_SAMPLED).astype(np.int32),
        turns=tuple(
            Turn(start, end, reward if k == turns - 1 else 0.0, f"s{k}", matches=(index + k) % 2 == 0)
            for k, (start, end) in enumerate(spans)
        ),
        reward=reward,
        components={"goal": reward, "form": 0.5 * (index % 2)},
        info={"agent": f"agent{index % 2}", "greedy_reward": 0.5, "answer_ids": [7, 8]},
        status=Status.FAILED if failure else Status.FINISHED,
        failure=failure,
    )


def group(task_id: str, rewards: list[float], version: int = 0, turns: int = 2) -> Group:
    episodes = (trajectory(task_id, i, turns, reward, version) for i, reward in enumerate(rewards))
    return Group(f"g-{task_id}", Task(task_id, "gridworld"), version, tuple(episodes), "w")


def with_flat_groups(*rewards: float) -> list[Group]:
    """The groups of `batch_of_groups` and, for each of the rewards, one whose four episodes all earn it."""
    return [*batch_of_groups(), *(group(f"u{n}", [reward] * 4) for n, reward in enumerate(rewards))]


def batch_of_groups(version: int = 0) -> list[Group]:
    """Three groups of unequal lengths, each with a learning signal."""
    return [
        group("t0", [0.0, 1.0, 0.0, 1.0], version, turns=1),
        group("t1", [1.0, 0.0, 0.5, 0.0], version, turns=3),
        group("t2", [0.0, 0.0, 0.0, 1.0], version, turns=2),
    ]
