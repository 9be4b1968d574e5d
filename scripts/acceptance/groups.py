"""Groups of made-up episodes with what any objective may read of one."""

from __future__ import annotations

import numpy as np

from asyncrl.types import ANSWER_IDS, NOT_SAMPLED, Group, Status, Task, Trajectory, Turn

CONTEXT, SAMPLED = 6, 4
"""Tokens of a turn."""


def groups(vocab_size: int, count: int = 3, size: int = 4) -> list[Group]:
    """Return `count` groups of `size` episodes of two turns, half of which earn something, all by version 0."""
    found = []
    for number in range(count):
        task = Task(f"t{number}", "gridworld")
        episodes = tuple(_episode(task.id, number, index, vocab_size) for index in range(size))
        found.append(Group(f"g{number}", task, 0, episodes, "worker"))
    return found


def _episode(task: str, number: int, index: int, vocab_size: int) -> Trajectory:
    rng = np.random.default_rng([number, index])
    length = 2 * (CONTEXT + SAMPLED)
    mask = np.arange(length) % (CONTEXT + SAMPLED) >= CONTEXT
    reward = float(index % 2)
    ends = (length // 2, length)
    return Trajectory(
        task_id=task,
        episode_index=index,
        token_ids=rng.integers(5, vocab_size, length).astype(np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -np.log(vocab_size), 0.0).astype(np.float32),
        versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
        turns=tuple(
            Turn(end - SAMPLED, end, reward * (end == length), f"state {end}", matches=index > 0)
            for end in ends
        ),
        reward=reward,
        components={"goal": reward, "form": 0.5 * (index > 1)},
        info={"agent": f"agent {index % 2}", "greedy_reward": 0.5, ANSWER_IDS: [7, 8]},
        status=Status.FINISHED,
    )
