"""Plays a recorded episode again: the same task, seed and settings.

    recorded actions   the turns that were sampled then are played in the environment of today, without a model: does it
                       answer as it did?
    sampled anew       the policy of that version, or the nearest that was kept, plays the task with the run's seed

Either way by the code that plays the episodes of a run. The environment is the one that the run's configuration names,
so this is for runs that one trusts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
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
from asyncrl.env.host import end_launcher
from asyncrl.env.protocol import agent_of
from asyncrl.errors import ConfigError, DeadlineError
from asyncrl.extensions.play_again.recorded_turns import (
    Difference,
    RecordedCalls,
    RecordedTurns,
    common_prefix,
    shown,
)
from asyncrl.launch.models.start_model import start_model
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.rollout.elsewhere import PlayerParts, played_elsewhere
from asyncrl.rollout.episode import ChatPlayer, episode_settings
from asyncrl.rollout.player import EpisodePlayer, EpisodeRequest, GivenPrefix
from asyncrl.run.checkpoints import MARKER
from asyncrl.run.replays import new_replay_file
from asyncrl.scratch import scratch_folder
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.router import EngineRouter
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import Group, Task, Trajectory

Turns = EngineClient | RecordedTurns | RecordedCalls
"""Where the turns come from."""
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
            f"replay: {path} does not hold the whole task of episode {index} of group {group!r}"
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
    if played_elsewhere(config.env.name) is None:
        return _play(recorded, config, model, RecordedTurns(recorded.rows), "recorded actions")
    calls = RecordedCalls(recorded.rows, config.max_tokens)
    played = _play(recorded, config, model, calls, "recorded actions")
    return replace(played, difference=calls.difference or played.difference)


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
    with scratch_folder("replay") as folder:
        group = ProcessGroup(folder)
        (folder / "config.json").write_text(config.model_dump_json())
        try:
            argv = ["serve", "engine", "--folder", str(folder), "--model", checkpoint]
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
    path = kept.get(version) or start_model(config)
    if version == wanted:
        return path, f"sampled by version {version}, which sampled the recorded one"
    return (
        path,
        f"sampled by version {version}, the nearest that was kept to {wanted}, which sampled the recorded one",
    )


def first_difference(recorded: Mapping[str, Any], now: Trajectory) -> Difference | None:
    """Return where a trajectory first differs from the recorded one: a message, a token, a reward or how it ended."""
    transcript = read_transcript(now.conversation, [turn.reward for turn in now.turns]) or []
    for number, (old, new) in enumerate(zip_longest(recorded["messages"] or [], transcript)):
        if _words(old) != _words(new):
            return Difference(f"message {number}", _words(old), _words(new))
    ids = np.asarray(recorded["token_ids"], np.int64)
    place = common_prefix(ids, now.token_ids)
    if place < max(len(ids), now.num_tokens):
        return Difference(f"token {place}", shown(ids, place), shown(now.token_ids, place))
    rewards = [float(np.float32(turn.reward)) for turn in now.turns]
    for number, (old_reward, reward) in enumerate(zip_longest(recorded["turn_reward"], rewards)):
        if old_reward != reward:
            return Difference(f"reward of turn {number}", str(old_reward), str(reward))
    for name in ("status", "success"):
        old_value, value = recorded[name], getattr(now, name)
        if old_value != value:
            return Difference(name, str(old_value), f"{value} {now.error}".strip())
    return None


def matched(
    rows: Sequence[Mapping[str, Any]], played: Sequence[Trajectory]
) -> list[tuple[Mapping[str, Any] | None, Trajectory | None]]:
    """Return recorded trajectories beside those played again of the same agent: of the same tokens, or else in order.

    None stands beside those that have no counterpart.
    """
    left = list(played)
    pairs: list[tuple[Mapping[str, Any] | None, Trajectory | None]] = []
    for row in rows:
        own = [t for t in left if agent_of(t.info) == agent_of(row["info"])]
        alike = (t for t in own if np.array_equal(t.token_ids, row["token_ids"]))
        chosen = next(alike, own[0] if own else None)
        left = [t for t in left if t is not chosen]
        pairs.append((row, chosen))
    return [*pairs, *((None, t) for t in left)]


def _play(recorded: Recorded, config: Config, model: str, generator: Turns, how: str) -> PlayedAgain:
    renderer = load_renderer(model, config.model.chat_template_args, config.model.chat_template)
    anew = isinstance(generator, EngineClient)
    played = asyncio.run(_episode(recorded, config, renderer, generator, anew))
    following = max(row["episode_index"] for row in recorded.rows) + 1
    trajectories, difference = [], None
    for row, t in matched(recorded.rows, played):
        if t is None:
            agent = agent_of(row["info"] if row is not None else {})
            difference = difference or Difference(f"agent {agent!r}", "took turns", "took none")
            continue
        index = following if row is None else row["episode_index"]
        following += row is None
        trajectories.append(replace(t, episode_index=index, info={**t.info, REPLAY: how}))
        difference = difference or (
            Difference(f"trajectory {index}", "none", f"{len(t.turns)} turns")
            if row is None
            else first_difference(row, t)
        )
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
    recorded: Recorded,
    config: Config,
    renderer: ChatRenderer,
    generator: Turns,
    anew: bool,
) -> tuple[Trajectory, ...]:
    limit_s = config.rollout.episode_timeout_s
    prefix = _given(recorded) if anew else None
    request = EpisodeRequest(
        recorded.task, int(_rollout(recorded.row)), "replay", prefix=prefix, timeout_s=limit_s
    )
    try:
        async with asyncio.timeout(limit_s), _player(config, renderer, generator) as player:
            return await player.play(request)
    except TimeoutError:
        raise DeadlineError(
            f"replay: the episode did not end within rollout.episode_timeout_s={limit_s:g}"
        ) from None
    finally:
        await end_launcher()
        if isinstance(generator, EngineClient):
            await generator.close()


@contextlib.asynccontextmanager
async def _player(config: Config, renderer: ChatRenderer, generator: Turns) -> AsyncIterator[EpisodePlayer]:
    """What plays the episodes of such a run."""
    turns = load_format(config.model.tool_format, config.model.reasoning_format, renderer)
    temperature, seed = config.rollout.temperature, config.run.seed
    if (elsewhere := played_elsewhere(config.env.name)) is None:
        envs = LocalEnvs()
        settings = episode_settings(config, temperature, seed)
        try:
            yield ChatPlayer(generator, envs, renderer, turns.parse, settings)
        finally:
            await envs.close()
        return
    assert not isinstance(generator, RecordedTurns)
    engines = EngineRouter([generator]) if isinstance(generator, EngineClient) else generator
    players = elsewhere.players(PlayerParts(config, engines, renderer, turns))
    await players.start()
    try:
        yield players.player(temperature, seed)
    finally:
        await players.close()
        if isinstance(engines, EngineRouter):
            await engines.close()


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


def _config(recorded: Recorded) -> Config:
    config = load_config(recorded.folder / "config.json")
    # An agent that is played again uses a gateway of this process.
    config.env.config.pop("gateway", None)
    return config


def _any_tokenizer(folder: Path, config: Config) -> str:
    """Return a folder that has the run's tokenizer: a checkpoint of it, or the model it began with."""
    kept = sorted((folder / "checkpoints").glob(f"step-*/{MARKER}"))
    return str(kept[-1].parent) if kept else start_model(config)


def _rollout(row: Mapping[str, Any]) -> Any:
    return row["info"].get("rollout", row["episode_index"])


def _words(message: Mapping[str, Any] | None) -> str:
    """Return a message as one text, to compare it and to show it."""
    if message is None:
        return "no message"
    calls = [f"{call['name']}({call['arguments']})" for call in message["tool_calls"] or ()]
    return "\n".join([f"{message['role']}: {message['content'] or ''}", *calls])
