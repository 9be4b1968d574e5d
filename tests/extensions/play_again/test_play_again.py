"""Episodes that were recorded are played again: alike in an environment that is as it was, and otherwise not."""

import asyncio
import dataclasses
import json

import numpy as np
import pytest

from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.chat.tool_formats import load_format
from asyncrl.cli import main
from asyncrl.config import load_config
from asyncrl.data.table import TrajectoryTable
from asyncrl.errors import ConfigError
from asyncrl.extensions.agents.players import Agents
from asyncrl.extensions.monitor.episodes import EpisodeTable
from asyncrl.extensions.play_again.play_again import find_recorded, nearest_checkpoint, replay_actions
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, episode_settings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.run.checkpoints import MARKER
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import Lease, Status, Task
from tests.envs.test_team import Scripted, Watched

pytestmark = pytest.mark.slow
STEP = 3


class Words:
    """Answers each turn with the next of these words."""

    def __init__(self, renderer, words):
        self.renderer, self.words = renderer, iter(words)

    async def generate(self, request):
        ids = self.renderer.assistant({"role": "assistant", "content": next(self.words)})
        return Generated(ids, np.full(len(ids), -0.5, np.float32), np.full(len(ids), 2, np.int32), "stop")


class Scenes(Words):
    """Serves a gateway: answers are longer than the pieces in which those with a stop string are sampled."""

    def __init__(self, renderer, words):
        super().__init__(renderer, words)
        self.pending = {}

    async def generate(self, request):
        key = request.id.rpartition("-")[0]
        if key not in self.pending:
            self.pending[key] = self.renderer.assistant(
                {"role": "assistant", "content": f"{next(self.words)} " * 6}
            )
        ids = self.pending[key][: request.max_tokens]
        self.pending[key] = self.pending[key][len(ids) :]
        reason = "length" if len(self.pending[key]) else "stop"
        numbers = np.arange(len(ids), dtype=np.float32)
        return Generated(ids, -numbers, np.full(len(ids), 2, np.int32), reason)

    async def context_limit(self):
        return 256

    def hold(self, session, num_tokens, ttl_s):
        pass


def record(folder, model, renderer, task, generator, envs, size, *settings):
    """Play a group as a run does, and leave its folder."""
    config = load_config(
        "gridworld_grpo", [f"model.path={json.dumps(model)}", f"env.name={task.env}", *settings]
    )
    player = ChatPlayer(generator, envs, renderer, parse_hermes, episode_settings(config, 1.0, 0))
    group = asyncio.run(
        EpisodeGroupRunner(player).run_group(Lease("g", task, 0, 1, size, 1, 60.0), "w", 30.0)
    )
    keep(folder, config, group)
    return group


def keep(folder, config, group):
    """Leave the folder of a run that has trained a group."""
    (folder / "config.json").write_text(config.model_dump_json())
    # With the version in its tokens; a step's trajectories are those of the step before's policy and older ones.
    TrajectoryTable(folder / "trajectories").write(STEP, [dataclasses.replace(group, version=2)])


@pytest.fixture
def walk(tmp_path, tiny_model, renderer):
    words = Words(renderer, ["north", "nonsense", "east"] * 8)
    record(
        tmp_path,
        tiny_model,
        renderer,
        Task("t", "gridworld", 12),
        words,
        LocalEnvs(),
        1,
        "env.config.max_turns=5",
    )
    return tmp_path


def change(folder, *overrides):
    config = load_config(folder / "config.json", overrides)
    (folder / "config.json").write_text(config.model_dump_json())


def test_recorded_actions_in_the_same_environment_come_to_the_same(walk, capsys):
    assert main(["replay", str(walk), f"{STEP}/g/0"]) == 0
    said = capsys.readouterr().out
    assert "task t of gridworld, seed 12, episode 0" in said
    assert "every message, token and reward is as recorded" in said
    again = replay_actions(find_recorded(walk, f"{STEP}/g/0"))
    assert again.difference is None
    # Both are kept, and the monitor shows the newest one first.
    episode = EpisodeTable(walk).episode(STEP, "g", 0)
    assert [one["info"]["replay"] for one in episode["replays"]] == ["recorded actions"] * 2
    assert again.file.name.endswith("-002.parquet")
    for name in ("token_ids", "loss_mask", "versions", "messages", "turn_reward", "status", "success"):
        assert episode["replays"][0][name] == episode[name]
    assert episode["replay_command"] == f"asyncrl replay {walk} {STEP}/g/0"


def test_another_environment_is_told_by_the_first_message_that_differs(walk, capsys):
    change(walk, "env.config.size=9")
    assert main(["replay", str(walk), f"{STEP}/g/0"]) == 1
    assert "first difference: message 0\n  recorded: user: goal" in capsys.readouterr().out
    change(walk, "env.config.size=5", "env.config.max_turns=4")
    again = replay_actions(find_recorded(walk, f"{STEP}/g/0"))
    assert (again.difference.where, again.difference.now) == ("message 8", "no message")
    change(walk, "env.config.max_turns=6", "rollout.max_turns=16")
    (now,) = replay_actions(find_recorded(walk, f"{STEP}/g/0")).trajectories
    assert "asks for a turn of the policy that was not recorded" in now.error


def test_every_agent_of_a_team_takes_its_own_turns_again(tmp_path, tiny_model, renderer):
    envs = Watched(["w-g-0-1", "w-g-1-1"])
    task, level = Task("train-0", "team", 0), "env.config.level=2"
    limits = ("rollout.max_tokens_per_turn=100", "engine.max_model_len=1000")
    group = record(tmp_path, tiny_model, renderer, task, Scripted(renderer, envs), envs, 2, level, *limits)
    # Episode 5 is the second keeper of the second team.
    again = replay_actions(find_recorded(tmp_path, f"{STEP}/g/5"))
    assert again.difference is None
    assert [t.episode_index for t in again.trajectories] == [1, 4, 5]
    second = group.trajectories[5]
    assert again.trajectories[2].token_ids.tolist() == second.token_ids.tolist()


AGENT = """
import asyncio, sys, openai

async def play(task, episode):
    async with openai.AsyncOpenAI(base_url=f"{episode.url}/v1", api_key=episode.key) as client:
        async def ask(messages, **options):
            reply = await client.chat.completions.create(model="policy", messages=messages, **options)
            return reply.choices[0].message.content

        talk = [{"role": "user", "content": f"start {task['seed']}"}]
        for word in ("more", "less"):
            talk += [{"role": "assistant", "content": await ask(talk)}, {"role": "user", "content": word}]
        question = [{"role": "user", "content": "QUESTION"}]
        helper = {"X-AsyncRL-Agent": "helper"}
        # The same twice, in pieces.
        first, second = [await ask(question, extra_headers=helper, stop=["nowhere"]) for _ in range(2)]
        talk += [{"role": "assistant", "content": await ask(talk)}]
        return {"reward": len(first) + len(second), "success": True}
"""


def test_an_agents_calls_get_what_was_sampled_for_the_same_and_its_branches_are_compared(
    tmp_path, tiny_model, renderer, capsys
):
    file = tmp_path / "my_agent.py"
    file.write_text(AGENT)
    words = ["one", "two", "three", "four", "five"]
    settings = [
        "env.config={}",
        f"env.config.callable={json.dumps(f'{file}:play')}",
        "engine.max_model_len=256",
        "rollout.max_tokens_per_turn=40",
    ]
    task = Task("t", "agent", 12)
    config = load_config(
        "gridworld_grpo", [f"model.path={json.dumps(tiny_model)}", "env.name=agent", *settings]
    )

    async def play():
        engines = Scenes(renderer, words)
        agents = Agents(config, engines, renderer, load_format("hermes", "", renderer))
        await agents.start()
        try:
            runner = EpisodeGroupRunner(agents.player(1.0, 0))
            return await runner.run_group(Lease("g", task, 0, 1, 1, 1, 60.0), "w", 30.0)
        finally:
            await agents.close()

    group = asyncio.run(play())
    assert [t.status for t in group.trajectories] == [Status.FINISHED] * 3
    keep(tmp_path, config, group)

    # One of the helper's branches: the episode is played whole.
    again = replay_actions(find_recorded(tmp_path, f"{STEP}/g/2"))
    assert again.difference is None
    assert [t.episode_index for t in again.trajectories] == [0, 1, 2]
    for now, recorded in zip(again.trajectories, group.trajectories, strict=True):
        for name in ("token_ids", "loss_mask", "versions", "behavior_logprobs"):
            assert getattr(now, name).tolist() == getattr(recorded, name).tolist()
        assert (now.reward, now.success) == (recorded.reward, True)

    other = tmp_path / "my_other_agent.py"
    other.write_text(AGENT.replace("QUESTION", "another question"))
    change(tmp_path, f"env.config.callable={json.dumps(f'{other}:play')}")
    assert main(["replay", str(tmp_path), f"{STEP}/g/0"]) == 1
    said = capsys.readouterr().out
    assert "the recorded episode has no call with this context" in said
    assert "of a call's context" in said


def test_the_policy_is_that_of_the_version_or_the_nearest_that_was_kept(walk):
    recorded = find_recorded(walk, f"{STEP}/g/0")
    config = load_config(walk / "config.json")
    assert recorded.sampled_by == 2

    def keep(version):
        path = walk / "checkpoints" / f"step-{version:06d}"
        path.mkdir(parents=True)
        (path / MARKER).touch()
        return str(path)

    four = keep(4)
    words = "the nearest that was kept to 2, which sampled the recorded one"
    assert nearest_checkpoint(recorded, config) == (config.model.path, f"sampled by version 0, {words}")
    three = keep(3)
    assert nearest_checkpoint(recorded, config) == (three, f"sampled by version 3, {words}")
    two = keep(2)
    assert nearest_checkpoint(recorded, config) == (
        two,
        "sampled by version 2, which sampled the recorded one",
    )
    assert four != three


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        ("g", "'g' is no trajectory; give STEP/GROUP/INDEX"),
        ("9/g/0", "has no trajectories of step 9"),
        (f"{STEP}/g/7", "has no episode 7 of group 'g'"),
        (f"{STEP}/../0", "has no episode 0 of group '..'"),
    ],
)
def test_what_was_not_recorded_is_named(walk, trajectory, message):
    with pytest.raises(ConfigError, match=message):
        find_recorded(walk, trajectory)


def test_a_wrong_command_says_what_to_give(walk, capsys):
    assert main(["replay", str(walk)]) == 2
    assert "is a folder; add STEP/GROUP/INDEX" in capsys.readouterr().err
    assert main(["replay", str(walk), f"{STEP}/g/0", "--checkpoint", "x"]) == 2
    assert "--checkpoint goes with --sample" in capsys.readouterr().err
