"""A learner without a model: tasks with a latent difficulty, and skills that grow with the signal of what is trained.

    success rate of task i = sigmoid(SLOPE (skill[topic i] - difficulty i))
    a group of G episodes with k successes:   skill[topic] += rate (k/G) (1 - k/G)

The signal is the variance of the group's rewards, with which the gradient of GRPO grows: a group that all episodes
solve or fail teaches nothing. What is learnt of a task helps with all others of its topic. So a curriculum is judged in
milliseconds; whether it helps a real policy is another question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncrl.extensions.curriculum.curriculum import Curriculum, Outcome
from asyncrl.types import Task

SLOPE = 6.0
LEVELS = 8


@dataclass(slots=True)
class SimulatedRun:
    """What a run has come to."""

    success: list[float] = field(default_factory=list)
    """Mean success rate over all tasks after each step."""
    informative: float = 0.0
    """Share of groups with both successes and failures."""
    rollouts: int = 0
    """Episodes played."""
    predictions: list[tuple[float, float]] = field(default_factory=list)
    """Predicted and realised success of each group with a prediction."""


def simulated_tasks(count: int, topics: int, seed: int) -> tuple[list[Task], np.ndarray]:
    """Return tasks and their difficulties [N], even over [0, 2]: most are beyond a new learner.

    `data` has the level, an eighth of the difficulties, and an embedding in which tasks of one topic and of about the
    same difficulty are near each other.
    """
    rng = np.random.default_rng([seed, 1])
    difficulty = rng.uniform(0.0, 2.0, count)
    tasks = []
    for i, hard in enumerate(difficulty):
        level, topic = int(hard / 2.0 * LEVELS), i % topics
        angle = np.pi * (hard + rng.normal(0, 0.05)) / 2
        same_topic = [float(topic == other) for other in range(topics)]
        data = {"level": level, "embedding": [*same_topic, np.cos(angle), np.sin(angle)]}
        tasks.append(Task(f"t{i}", "simulated", i, data=data))
    return tasks, difficulty


def simulate(
    make: Callable[[Sequence[Task]], Curriculum],
    seed: int,
    steps: int = 60,
    groups_per_step: int = 8,
    count: int = 240,
    topics: int = 3,
    rate: float = 0.25,
) -> SimulatedRun:
    """Play and train `steps` steps under a curriculum, on policy."""
    tasks, difficulty = simulated_tasks(count, topics, seed)
    topic = np.arange(count) % topics
    skill = np.linspace(0.0, 0.3, topics)
    curriculum, run, informative = make(tasks), SimulatedRun(), 0
    for step in range(steps):
        number = step * groups_per_step
        rates = 1 / (1 + np.exp(-SLOPE * (skill[topic] - difficulty)))
        outcomes, grown = [], np.zeros(topics)
        for offset, proposal in enumerate(curriculum.propose(groups_per_step, number)):
            rng = np.random.default_rng([seed, 2, number + offset])
            played = (rng.random(proposal.rollouts) < rates[proposal.place]).astype(float)
            outcomes.append(Outcome(proposal.place, tuple(played), tuple(played), step))
            grown[topic[proposal.place]] += played.var()
            informative += 0 < played.sum() < len(played)
            run.rollouts += len(played)
            if proposal.predicted is not None:
                run.predictions.append((proposal.predicted, float(played.mean())))
        skill = skill + rate * grown
        curriculum.observe(outcomes)
        run.success.append(float((1 / (1 + np.exp(-SLOPE * (skill[topic] - difficulty)))).mean()))
    run.informative = informative / (steps * groups_per_step)
    return run
