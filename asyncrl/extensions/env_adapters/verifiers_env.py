"""Our environments as environments of verifiers 0.1: what `verifiers.load_environment` calls is here.

    vf.load_environment("asyncrl.extensions.env_adapters.verifiers_env", env="gridworld")

Needs the package verifiers, which has `MultiTurnEnv` up to version 0.1; `verifiers_taskset.py` is for later ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import verifiers as vf
from datasets import Dataset

from asyncrl.errors import EpisodeError, InfrastructureError
from asyncrl.extensions.env_adapters.our_episode import OurEpisode, tasks_of
from asyncrl.types import Task


def load_environment(
    env: str = "gridworld", config: dict[str, Any] | None = None, train: int = 1000, heldout: int = 100
) -> vf.Environment:
    """Return an environment of ours with its tasks and its reward.

    env: its name or import path. config: its settings. train, heldout: how many tasks the two data sets have, at most.
    Raises `ConfigError` for an unknown environment.
    """
    settings = config or {}
    return AsyncrlEnv(
        settings,
        dataset=_rows(env, settings, "train", train),
        eval_dataset=_rows(env, settings, "heldout", heldout),
        rubric=EpisodeRubric(),
    )


def _rows(env: str, config: dict[str, Any], split: str, count: int) -> Dataset:
    """Return tasks as a data set. Prompts are not known before an episode is opened."""
    tasks = tasks_of(env, config, split, count)
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": task.id}], "answer": "", "info": json.dumps(asdict(task))}
            for task in tasks
        ]
    )


class EpisodeRubric(vf.Rubric):  # type: ignore[misc]
    """Scores an episode with the environment's own reward; success and components of the reward are metrics."""

    def __init__(self) -> None:
        super().__init__(funcs=[self.environment_reward])

    async def environment_reward(self, state: vf.State) -> float:
        """Return the sum of the rewards of all turns."""
        return float(state["episode"]["reward"])

    async def score_rollout(self, state: vf.State) -> None:
        await super().score_rollout(state)
        state["metrics"].update(state["episode"]["metrics"])

    async def score_group(self, states: list[vf.State]) -> None:
        await super().score_group(states)
        for state in states:
            state["metrics"].update(state["episode"]["metrics"])


class AsyncrlEnv(vf.MultiTurnEnv):  # type: ignore[misc]
    """Episodes of an environment of ours, which ends them itself.

    A turn that a limit of tokens cuts ends its episode, as it does in a rollout worker, without being played.
    """

    def __init__(self, config: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.config = config

    async def setup_state(self, state: vf.State) -> vf.State:
        """Open the session, whose messages are the prompt."""
        episode = OurEpisode(Task(**state["info"]), self.config)
        state["playing"] = episode
        state["episode"] = {"reward": 0.0, "metrics": {}}
        try:
            state["prompt"] = await episode.open()
        except EpisodeError as error:
            raise _sorted(error) from error
        state["oai_tools"] = episode.tools
        return state

    async def env_response(self, messages: Any, state: vf.State, **options: Any) -> Any:
        """Play the model's turn; the last answer ends the episode."""
        episode = state["playing"]
        if state["trajectory"][-1]["is_truncated"]:
            state["is_truncated"], state["final_env_response"] = True, []
            return []
        try:
            answers = await episode.step(messages[-1])
        except EpisodeError as error:
            raise _sorted(error) from error
        state["episode"] = {"reward": episode.reward, "metrics": episode.metrics()}
        if episode.done:
            state["is_truncated"], state["final_env_response"] = episode.truncated, answers
        return answers

    @vf.cleanup  # type: ignore[misc]
    async def end_session(self, state: vf.State) -> None:
        """Close the session."""
        episode = state.pop("playing", None)
        if episode is not None:
            await episode.close()


def _sorted(error: EpisodeError) -> Exception:
    """The library's error by whose fault it is."""
    kind = vf.InfraError if isinstance(error, InfrastructureError) else vf.Error
    failure: Exception = kind(str(error))
    return failure
