"""From a judge's reply over HTTP to the advantages of tokens; and what a judge that is killed costs."""

import asyncio
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from asyncrl.buffer.put import admit
from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.config import parse_config
from asyncrl.data.table import write_trajectories
from asyncrl.env.protocol import Env, Step
from asyncrl.extensions.judge.client import JudgeClient
from asyncrl.extensions.judge.judging import Judging, judging
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.extensions.published.advantage.gdpo import gdpo
from asyncrl.extensions.published.advantage.mt_grpo import mt_grpo
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.services.env.client import LocalEnvs
from asyncrl.train.step.step_batch import build_step_batch, to_advantage_batch
from asyncrl.types import FailureClass, Lease, Status, Task
from tests.app_thread import free_port
from tests.extensions.judge.server import Endpoint, chat, serving, start_process
from tests.waiting import running, wait_until

SAID = [(0, 0), (1, 0), (0, 1), (1, 1)]
"""The numbers that each of four episodes says in its two turns."""
TURN = re.compile(r"\[assistant(?:, turn \d)?\] say (\d)")


class TwoTurns(Env):
    """Asks twice; its own reward of 7 is nobody's when a judge replaces it."""

    blocking = False
    max_turns = 2

    def reset(self):
        self.asked = 1
        return [{"role": "user", "content": "goal"}]

    def step(self, action):
        self.asked += 1
        if self.asked > 2:
            return Step(done=True, reward=7.0)
        return Step([{"role": "user", "content": "goal"}])


class Saying:
    """Says the number of its episode and turn."""

    def __init__(self, renderer):
        self.renderer = renderer

    async def generate(self, request):
        index, turn = map(int, re.fullmatch(r"w-l-(\d)-\d-(\d)", request.id).groups())
        text = f"say {SAID[index][turn]}"
        ids = self.renderer.assistant({"role": "assistant", "content": text})
        return Generated(ids, np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32), "stop")


def play_group(renderer, end):
    """Play four episodes of one task, have `end` judge them, and close it."""
    settings = EpisodeSettings(Limits(0, 16, 200), check_history=True)
    player = ChatPlayer(Saying(renderer), LocalEnvs(), renderer, parse_hermes, settings, [end])
    lease = Lease("l", Task("t", f"{__name__}:TwoTurns", 0), 0, 0, 4, 1, 60.0)

    async def scenario():
        try:
            return await EpisodeGroupRunner(player).run_group(lease, "w", 600.0)
        finally:
            await end.close()

    return asyncio.run(scenario())


def configured(url, **judge):
    config = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "judge": {"url": url, **judge}}
    return judging(WorkerContext(parse_config(config)))


def advantages(group, estimate, **params):
    """Return the advantage of each sampled token of a group, a list for each turn of each episode."""
    batch = to_advantage_batch(build_step_batch([group], 0, 0))
    found = estimate(batch, **params)
    return [
        [row[turns == turn].tolist() for turn in range(2)]
        for row, turns in zip(found, torch.where(batch.mask, batch.turn_ids, -1), strict=True)
    ]


def by_turn(found):
    """Return one number for each turn, the same on all its tokens."""
    assert all(len({round(one, 4) for one in turn}) == 1 for row in found for turn in row)
    return [pytest.approx([turn[0] for turn in row], abs=2e-3) for row in found]


def by_components(prompt):
    first, second = map(int, TURN.findall(prompt))
    return f"Reasons.\nright: {10 * first}\nbrief: {1 + 4 * second}"


def test_gdpo_learns_from_the_components_of_a_judge(renderer, tmp_path):
    components = {"right": {"rubric": "Is it right?"}, "brief": {"rubric": "Is it short?", "scale": [1, 5]}}
    endpoint = Endpoint(chat(by_components))
    with serving(endpoint) as url:
        group = play_group(renderer, configured(url, components=components))
    assert [t.reward for t in group.trajectories] == [0.0, 1.0, 1.0, 2.0]
    # Each component is 0, 0, 1, 1 in some order: deviations of 1/2, standard deviation sqrt(1/3), so scores of
    # 0.866; their sum is -1.732, 0, 0, 1.732, whose standard deviation is sqrt(2).
    expected = [[one, one] for one in (-1.2247, 0.0, 0.0, 1.2247)]
    assert by_turn(advantages(group, gdpo)) == expected
    only_right = by_turn(advantages(group, gdpo, weights={"judge_brief": 0.0}))
    assert only_right == [[one, one] for one in (-0.866, 0.866, -0.866, 0.866)]
    write_trajectories(tmp_path / "t.parquet", 0, [group])
    rows = pq.read_table(tmp_path / "t.parquet")["components"].to_pylist()
    assert [{one["name"]: one["value"] for one in row} for row in rows] == [
        {"judge_right": float(first), "judge_brief": float(second)} for first, second in SAID
    ]


def by_turns(prompt):
    first, second = map(int, TURN.findall(prompt))
    return f"overall: {5 * second}\nturn 1: {10 * first}\nturn 2: {10 * second}"


def test_mt_grpo_learns_from_the_scores_of_turns(renderer):
    endpoint = Endpoint(chat(by_turns))
    with serving(endpoint) as url:
        group = play_group(renderer, configured(url, per_turn=True))
    # A turn earns half its score, the last one the whole episode's as well.
    assert [[turn.reward for turn in t.turns] for t in group.trajectories] == [
        [0.0, 0.0],
        [0.5, 0.0],
        [0.0, 1.0],
        [0.5, 1.0],
    ]
    # The first turns' rewards 0, 1/2, 0, 1/2 and the outcomes 0, 0, 1, 1 both have scores of 0.866 either way. The
    # first turn has the sum of both, the second the outcome's.
    expected = [[-1.732, -0.866], [0.0, -0.866], [0.0, 0.866], [1.732, 0.866]]
    assert by_turn(advantages(group, mt_grpo)) == expected
    assert len(endpoint.bodies) == 4


def listening(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_judge_that_is_killed_and_started_again_loses_nothing(renderer):
    """The first one has taken a request that it never answers when it is killed."""
    port = free_port()
    first = start_process(port, pause_s=3600.0)
    wait_until(lambda: listening(port), running(first))
    end = configured(f"http://127.0.0.1:{port}")
    started = []

    def replaced():
        wait_until(lambda: end.judge.endpoint.sent == 4)
        first.kill()
        first.wait()
        started.append(start_process(port))

    with ThreadPoolExecutor() as pool:
        replacing = pool.submit(replaced)
        group = play_group(renderer, end)
        replacing.result()
    started[0].kill()
    started[0].wait()
    assert [(t.status, t.reward) for t in group.trajectories] == [(Status.FINISHED, 0.5)] * 4
    assert end.judge.endpoint.sent > 4


def test_a_group_that_no_judge_scored_is_played_again_and_never_trained_as_zeros(renderer):
    port = free_port()

    def end():
        return Judging(JudgeClient(JudgeConfig(url=f"http://127.0.0.1:{port}")))

    lost = play_group(renderer, end())
    assert [(t.status, t.failure) for t in lost.trajectories] == [(Status.FAILED, FailureClass.JUDGE)] * 4
    admission = admit(lost, 4, frozenset(), 1000)
    assert (admission.outcome, admission.failure, admission.usable) == ("retry", "judge", 0)
    with serving(Endpoint(chat("5")), port):
        again = play_group(renderer, end())
    assert [t.reward for t in again.trajectories] == [0.5] * 4
    assert admit(again, 4, frozenset(), 1000).outcome == "ready"
