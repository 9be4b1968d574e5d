"""Branches of a sibling: what is given is played, seen and never trained."""

import asyncio
from dataclasses import replace

import numpy as np

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.env.protocol import Env, Step
from asyncrl.extensions.branches.forks import Fork, least_certain
from asyncrl.extensions.branches.strategy import Branches, prefix_of
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import Lease, Status, Task

ENV = f"{__name__}:Trail"
WORDS = ("north", "south", "east", "west")


class Trail(Env):
    """Repeats all that was said; ends after four turns."""

    blocking = False
    max_turns = 4

    def __init__(self, task):
        super().__init__(task)
        self.said = []

    def reset(self):
        return [{"role": "user", "content": "go"}]

    def step(self, action):
        self.said.append(action.content)
        done = len(self.said) == 4
        return Step([{"role": "user", "content": " ".join(self.said)}], 1.0, done)


class Walker:
    """Says another word in every call; least certain of its call number `unsure`."""

    def __init__(self, renderer, unsure=-1):
        self.renderer, self.unsure, self.requests = renderer, unsure, []

    async def generate(self, request):
        call = len(self.requests)
        self.requests.append(request)
        ids = self.renderer.assistant({"role": "assistant", "content": WORDS[call % 4]})
        logp = -2.0 if call == self.unsure else -0.1 - 0.01 * call
        return Generated(ids, np.full(len(ids), logp, np.float32), np.full(len(ids), 3, np.int32), "stop")


def run(renderer, walker, group_size, strategies, task=None):
    settings = EpisodeSettings(Limits(0, 16, 400), check_history=True)
    player = ChatPlayer(walker, LocalEnvs(), renderer, parse_hermes, settings)
    lease = Lease("l", task or Task("t", ENV, 0), 3, 3, group_size, 1, 60.0)
    return asyncio.run(EpisodeGroupRunner(player, strategies).run_group(lease, "w", 20.0)).trajectories


def test_a_branch_leaves_its_parent_before_the_least_certain_turn(renderer):
    walker = Walker(renderer, unsure=2)
    trunk, leaf = run(renderer, walker, 2, [Branches(1)])
    assert leaf.info["branch_of"] == 0
    assert leaf.info["branch_turn"] == 2
    start = trunk.turns[2].start
    assert leaf.token_ids[:start].tolist() == trunk.token_ids[:start].tolist()
    assert leaf.token_ids[start:].tolist() != trunk.token_ids[start:].tolist()
    assert len(walker.requests) == 4 + 2, "the shared turns were not sampled again"
    assert walker.requests[4].session == walker.requests[0].session, (
        "the engine that holds the prefix is asked"
    )
    assert walker.requests[4].id not in {request.id for request in walker.requests[:4]}


def test_each_token_of_a_tree_is_trained_once(renderer):
    trunk, leaf = run(renderer, Walker(renderer, unsure=2), 2, [Branches(1)])
    start = trunk.turns[2].start
    assert not leaf.loss_mask[:start].any()
    assert (leaf.versions[:start] == -1).all()
    assert leaf.num_sampled == sum(turn.end - turn.start for turn in leaf.turns[2:])
    assert trunk.num_sampled == sum(turn.end - turn.start for turn in trunk.turns)


def test_given_turns_are_played_and_credited(renderer):
    _, leaf = run(renderer, Walker(renderer, unsure=1), 2, [Branches(1)])
    assert [turn.reward for turn in leaf.turns] == [1.0] * 4
    assert (leaf.status, leaf.reward) == (Status.FINISHED, 4.0)
    assert leaf.info["history_matches"] is True


def test_a_group_keeps_its_size_where_there_are_too_few_forks(renderer):
    found = run(renderer, Walker(renderer), 6, [Branches(5)])
    assert [t.episode_index for t in found] == list(range(6))
    assert [t.info.get("branch_turn") for t in found] == [None, 3, 2, 1, None, None]


def test_forks_are_taken_most_uncertain_first_and_never_of_failed_or_first_turns(renderer):
    trunk, _ = run(renderer, Walker(renderer, unsure=0), 2, [Branches(1)])
    failed = replace(trunk, status=Status.FAILED)
    assert least_certain([failed, trunk], 9) == [Fork(1, 3), Fork(1, 2), Fork(1, 1)]
    prefix = prefix_of(EpisodeRequest(trunk.task_id, 0, "e"), trunk, Fork(0, 1))
    assert (len(prefix.turns), prefix.session) == (1, "e-1")
    assert prefix.turns[0].tolist() == trunk.token_ids[trunk.turns[0].start : trunk.turns[0].end].tolist()
