"""Plays a recorded episode again: the same task, seed and settings.

    recorded actions   the turns that were sampled then are played in the environment of today, without a model: does it
                       answer as it did?
    sampled anew       the policy of that version, or the nearest that was kept, plays the task with the run's seed

Either way by the code that plays the episodes of a run. The environment is the one that the run's configuration names,
so this is for runs that one trusts.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from asyncrl.chat.renderer import ChatRenderer, load_renderer
from asyncrl.chat.tool_formats import load_format
from asyncrl.config import Config, load_config
from asyncrl.data.codec import task_from_map
from asyncrl.data.table import write_trajectories
from asyncrl.data.transcript import read_transcript
from asyncrl.env.check import end_launcher
from asyncrl.env.protocol import MAIN_AGENT
from asyncrl.env.registry import ELSEWHERE
from asyncrl.errors import AgentError, ConfigError, DeadlineError
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.launch.process_group import ProcessGroup
from asyncrl.launch.train import base_model
from asyncrl.rollout.episode import ChatPlayer, episode_settings
from asyncrl.rollout.given_prefix import GivenPrefix
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.run.checkpoints import MARKER
from asyncrl.run.replays import new_replay_file
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import Group, Status, Task, Trajectory

REPLAY = "replay"
"""Key of `Trajectory.info`: how an episode was played again."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One episode of a run."""

    folder: Path
    """The run's."""
    step: int
    group: str
    index: int
    """`episode_index` of the trajectory that was named."""
    version: int
    """At which its group was admitted."""
    task: Task
    rows: tuple[dict[str, Any], ...]
    """Its trajectories: that of the main agent, then those of further ones."""

    @property
    def row(self) -> dict[str, Any]:
        """The trajectory that was named."""
        return next(row for row in self.rows if row["episode_index"] == self.index)

    @property
    def sampled_by(self) -> int:
        """The version that sampled its first token, or -1 where nothing was sampled."""
        return next(
            (
                v
                for row in self.rows
                for v, mask in zip(row["versions"], row["loss_mask"], strict=True)
                if mask
            ),
            -1,
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an episode that was played again first leaves the recorded one."""

    where: str
    recorded: str
    now: str


@dataclass(frozen=True, slots=True)
class PlayedAgain:
    """What came of it."""

    trajectories: tuple[Trajectory, ...]
    difference: Difference | None
    how: str
    file: Path
    """Where it is kept; the monitor shows it beside the recorded one."""


def find_recorded(folder: Path, trajectory: str) -> Recorded:
    """Return the episode that `STEP/GROUP/INDEX` names, as in the address of its page. Raises `ConfigError`."""
    step, _, rest = trajectory.partition("/")
    group, _, index = rest.rpartition("/")
    if not (step.isdigit() and group and index.isdigit()):
        raise ConfigError(
            f"replay: {trajectory!r} is no trajectory; give STEP/GROUP/INDEX, as its page in asyncrl monitor does"
        )
    path = folder / "trajectories" / f"step-{int(step):06d}.parquet"
    if not path.is_file():
        raise ConfigError(f"replay: {folder} has no trajectories of step {int(step)}: there is no {path}")
    found = pq.read_table(path, filters=[("group", "==", group)]).to_pylist()
    for row in found:
        row["info"] = json.loads(row["info"] or "{}")
    named = next((row for row in found if row["episode_index"] == int(index)), None)
    if named is None:
        raise ConfigError(f"replay: {path} has no episode {index} of group {group!r}")
    if not named.get("task_json"):
        raise ConfigError(
            f"replay: {path} was written by an earlier asyncrl, which did not record the whole task"
        )
    task = task_from_map(json.loads(named["task_json"]))
    rows = tuple(row for row in found if _rollout(row) == _rollout(named))
    return Recorded(folder, int(step), group, int(index), named["version_admitted"], task, rows)


def replay_actions(recorded: Recorded) -> PlayedAgain:
    """Play the recorded turns in the environment, without a model, and compare what comes back.

    Raises `ConfigError` for an episode that cannot be played so.
    """
    config = _config(recorded)
    model = _any_tokenizer(recorded.folder, config)
    return _play(recorded, config, model, RecordedTurns(recorded.rows), "recorded actions")


def sample_again(recorded: Recorded, checkpoint: str = "") -> PlayedAgain:
    """Have a policy play the task, with the run's seed.

    checkpoint: a model folder or hub name; "" for that of `nearest_checkpoint`. Raises `ConfigError`,
    `UnavailableError`, `DeadlineError`.
    """
    config = _config(recorded)
    if checkpoint:
        how = f"sampled by {checkpoint}"
    else:
        checkpoint, how = nearest_checkpoint(recorded, config)
    with tempfile.TemporaryDirectory(prefix="asyncrl-replay-") as name:
        group = ProcessGroup(Path(name))
        (Path(name) / "config.json").write_text(config.model_dump_json())
        try:
            argv = ["serve", "engine", "--folder", name, "--model", checkpoint]
            url = group.wait_ready(group.start("engine", argv), config.run.start_timeout_s)
            engine = EngineClient(url, group.credentials.bearer("engine"), config.rollout.episode_timeout_s)
            return _play(recorded, config, checkpoint, engine, how)
        finally:
            group.stop()


def nearest_checkpoint(recorded: Recorded, config: Config) -> tuple[str, str]:
    """Return the policy nearest to the version that sampled the episode, and words that say which one it is.

    Version 0 is the model that the run began with. Of two that are equally near it is the older one. Raises
    `ConfigError` for an episode in which nothing was sampled.
    """
    wanted = recorded.sampled_by
    if wanted < 0:
        raise ConfigError("replay: nothing was sampled in this episode; name a policy by --checkpoint")
    kept = {
        int(path.parent.name.removeprefix("step-")): str(path.parent)
        for path in (recorded.folder / "checkpoints").glob(f"step-*/{MARKER}")
    }
    version = min([0, *kept], key=lambda one: (abs(one - wanted), one))
    path = kept.get(version) or base_model(config)
    if version == wanted:
        return path, f"sampled by version {version}, which sampled the recorded one"
    return (
        path,
        f"sampled by version {version}, the nearest that was kept to {wanted}, which sampled the recorded one",
    )


class RecordedTurns:
    """A `Generator` that returns the turns of a recorded episode, agent by agent."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._left = {_agent(row): deque(_turns(row)) for row in rows}

    async def generate(self, request: GenerateRequest) -> Generated:
        """Return the agent's next turn. Raises `AgentError` where the recorded episode had no further one."""
        left = self._left.get(request.agent)
        if not left:
            who = f"agent {request.agent!r}" if request.agent != MAIN_AGENT else "the policy"
            raise AgentError(f"the environment asks for a turn of {who} that was not recorded")
        return left.popleft()


def first_difference(recorded: Mapping[str, Any], now: Trajectory) -> Difference | None:
    """Return where a trajectory first differs from the recorded one: a message, a token, a reward or how it ended."""
    said = read_transcript(now.conversation, [turn.reward for turn in now.turns]) or []
    for number, (old, new) in enumerate(zip_longest(recorded["messages"] or [], said)):
        if _words(old) != _words(new):
            return Difference(f"message {number}", _words(old), _words(new))
    ids = np.asarray(recorded["token_ids"], np.int64)
    length = min(len(ids), now.num_tokens)
    differs = np.flatnonzero(ids[:length] != now.token_ids[:length])
    if len(differs) or len(ids) != now.num_tokens:
        place = int(differs[0]) if len(differs) else length
        old_ids, new_ids = ids[place : place + 8].tolist(), now.token_ids[place : place + 8].tolist()
        return Difference(f"token {place}", str(old_ids), str(new_ids))
    rewards = [float(np.float32(turn.reward)) for turn in now.turns]
    for number, (old_reward, reward) in enumerate(zip_longest(recorded["turn_reward"], rewards)):
        if old_reward != reward:
            return Difference(f"reward of turn {number}", str(old_reward), str(reward))
    for name in ("status", "success"):
        old_value, value = recorded[name], getattr(now, name)
        if old_value != value:
            return Difference(name, str(old_value), f"{value} {now.error}".strip())
    return None


def _play(recorded: Recorded, config: Config, model: str, generator: Generator, how: str) -> PlayedAgain:
    renderer = load_renderer(model)
    anew = not isinstance(generator, RecordedTurns)
    played = asyncio.run(_episode(recorded, config, renderer, generator, anew))
    indices = {_agent(row): row["episode_index"] for row in recorded.rows}
    following = max(indices.values()) + 1
    trajectories = []
    for t in played:
        agent = t.info.get("agent_name", MAIN_AGENT)
        index = indices.get(agent)
        if index is None:
            index, following = following, following + 1
        trajectories.append(replace(t, episode_index=index, info={**t.info, REPLAY: how}))
    by_index = {t.episode_index: t for t in trajectories}
    difference = None
    for row in recorded.rows:
        now = by_index.get(row["episode_index"])
        if now is None:
            difference = difference or Difference(f"agent {_agent(row)!r}", "took turns", "took none")
        else:
            difference = difference or first_difference(row, now)
    group = Group(recorded.group, recorded.task, recorded.version, tuple(trajectories), "replay")
    try:
        file = new_replay_file(recorded.folder, recorded.step, recorded.group, recorded.index)
        write_trajectories(file, recorded.step, [group])
    except OSError as error:
        raise ConfigError(
            f"replay: what was played cannot be kept in {recorded.folder}: {error.strerror}; copy the run's folder to "
            "where you may write"
        ) from error
    return PlayedAgain(tuple(trajectories), difference, how, file)


async def _episode(
    recorded: Recorded, config: Config, renderer: ChatRenderer, generator: Generator, anew: bool
) -> tuple[Trajectory, ...]:
    settings = episode_settings(config, config.rollout.temperature, config.run.seed)
    parse = load_format(config.model.tool_format, config.model.reasoning_format, renderer).parse
    envs = LocalEnvs()
    request = EpisodeRequest(
        recorded.task, int(_rollout(recorded.row)), "replay", prefix=_given(recorded) if anew else None
    )
    try:
        async with asyncio.timeout(config.rollout.episode_timeout_s):
            return await ChatPlayer(generator, envs, renderer, parse, settings).play(request)
    except TimeoutError:
        limit_s = config.rollout.episode_timeout_s
        raise DeadlineError(
            f"replay: the episode did not end within rollout.episode_timeout_s={limit_s:g}"
        ) from None
    finally:
        await envs.close()
        await end_launcher()
        if isinstance(generator, EngineClient):
            await generator.close()


def _given(recorded: Recorded) -> GivenPrefix | None:
    """Return the first turns that the episode was given: those of a hint, or of the episode it branched off."""
    row = recorded.rows[0]
    mask, ids = np.asarray(row["loss_mask"], bool), np.asarray(row["token_ids"], np.int32)
    turns = []
    for start, end in zip(row["turn_start"], row["turn_end"], strict=True):
        if mask[start:end].any():
            break
        turns.append(ids[start:end])
    return GivenPrefix(tuple(turns)) if turns else None


def _turns(row: Mapping[str, Any]) -> list[Generated]:
    ids, versions = np.asarray(row["token_ids"], np.int32), np.asarray(row["versions"], np.int32)
    logprobs = np.asarray(row["behavior_logprobs"], np.float32)
    spans = list(zip(row["turn_start"], row["turn_end"], strict=True))
    cut = row["status"] == Status.TRUNCATED and row["error"] == "max_tokens_per_turn"
    return [
        Generated(
            ids[start:end],
            logprobs[start:end],
            versions[start:end],
            "length" if cut and number == len(spans) - 1 else "stop",
        )
        for number, (start, end) in enumerate(spans)
    ]


def _config(recorded: Recorded) -> Config:
    config = load_config(recorded.folder / "config.json")
    if config.env.name in ELSEWHERE:
        raise ConfigError(
            f"replay: the episodes of this run were played by an agent (env.name {config.env.name!r}), which only a "
            "run starts; its environment is not known here"
        )
    return config


def _any_tokenizer(folder: Path, config: Config) -> str:
    """Return a folder that has the run's tokenizer: a checkpoint of it, or the model it began with."""
    kept = sorted((folder / "checkpoints").glob(f"step-*/{MARKER}"))
    return str(kept[-1].parent) if kept else base_model(config)


def _rollout(row: Mapping[str, Any]) -> Any:
    return row["info"].get("rollout", row["episode_index"])


def _agent(row: Mapping[str, Any]) -> str:
    return str(row["info"].get("agent_name", row["info"].get("agent", MAIN_AGENT)))


def _words(message: Mapping[str, Any] | None) -> str:
    """Return a message as one text, to compare it and to show it."""
    if message is None:
        return "no message"
    calls = [f"{call['name']}({call['arguments']})" for call in message["tool_calls"] or ()]
    return "\n".join([f"{message['role']}: {message['content'] or ''}", *calls])
