"""Branches of a sibling and hints: what is given is played, seen and never trained."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from asyncrl.algo.curation.forks import Fork, least_certain
from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.env.protocol import Env, Step
from asyncrl.errors import InfrastructureError
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.given_prefix import branch, hint
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.token_branches import TokenBranches
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


def run(
    renderer, walker, group_size, task=None, branches=0, hinted=0, hint_turns=1, by_difficulty=False,
    fork_at="uncertain",
):  # fmt: skip
    settings = EpisodeSettings(Limits(0, 16, 400), check_history=True)
    player = ChatPlayer(walker, LocalEnvs(), renderer, parse_hermes, settings)
    give_hint = partial(hint, most=hint_turns, encode=renderer.assistant)
    runner = EpisodeGroupRunner(
        player, branches, hinted, give_hint, hints_by_difficulty=by_difficulty, fork_at=fork_at
    )
    lease = Lease("l", task or Task("t", ENV, 0), 3, 3, group_size, 1, 60.0)
    return asyncio.run(runner.run_group(lease, "w", 20.0)).trajectories


def test_a_branch_leaves_its_parent_before_the_least_certain_turn(renderer):
    walker = Walker(renderer, unsure=2)
    trunk, leaf = run(renderer, walker, 2, branches=1)
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
    trunk, leaf = run(renderer, Walker(renderer, unsure=2), 2, branches=1)
    start = trunk.turns[2].start
    assert not leaf.loss_mask[:start].any()
    assert (leaf.versions[:start] == -1).all()
    assert leaf.num_sampled == sum(turn.end - turn.start for turn in leaf.turns[2:])
    assert trunk.num_sampled == sum(turn.end - turn.start for turn in trunk.turns)


def test_given_turns_are_played_and_credited(renderer):
    _, leaf = run(renderer, Walker(renderer, unsure=1), 2, branches=1)
    assert [turn.reward for turn in leaf.turns] == [1.0] * 4
    assert (leaf.status, leaf.reward) == (Status.FINISHED, 4.0)
    assert leaf.info["history_matches"] is True


def test_a_group_keeps_its_size_where_there_are_too_few_forks(renderer):
    found = run(renderer, Walker(renderer), 6, branches=5)
    assert [t.episode_index for t in found] == list(range(6))
    assert [t.info.get("branch_turn") for t in found] == [None, 3, 2, 1, None, None]


def test_forks_are_taken_most_uncertain_first_and_never_of_failed_or_first_turns(renderer):
    trunk, _ = run(renderer, Walker(renderer, unsure=0), 2, branches=1)
    failed = replace(trunk, status=Status.FAILED)
    assert least_certain([failed, trunk], 9) == [Fork(1, 3), Fork(1, 2), Fork(1, 1)]
    prefix = branch(trunk, Fork(0, 1), "s")
    assert (len(prefix.turns), prefix.session) == (1, "s")
    assert prefix.turns[0].tolist() == trunk.token_ids[trunk.turns[0].start : trunk.turns[0].end].tolist()


class Doubtful(Walker):
    """Says its words with these probabilities, one for each call."""

    def __init__(self, renderer, *probabilities):
        super().__init__(renderer)
        self.probabilities = probabilities

    async def generate(self, request):
        generated = await super().generate(request)
        logp = np.log(self.probabilities[len(self.requests) - 1])
        return replace(generated, logprobs=np.full_like(generated.logprobs, logp))


class LongTrail(Trail):
    """A trail of six turns."""

    max_turns = 6

    def step(self, action):
        return replace(super().step(action), done=len(self.said) == 6)


def test_a_branch_whose_confidence_keeps_falling_ends_there_with_what_it_has_earned(renderer):
    # The mean confidence of the trunk is 0.82, and its turn 1 the least certain: a branch leaves before it. With the
    # trunk's first turn its own have C of 0.85, 0.77 and 0.65.
    walker = Doubtful(renderer, 0.9, 0.75, 0.8, 0.8, 0.8, 0.8, 0.8, 0.6, 0.3)
    task = Task("t", f"{__name__}:LongTrail", 0)
    trunk, leaf = run(renderer, walker, 2, task, branches=1, fork_at="confidence")
    assert leaf.info["branch_turn"] == 1
    assert (leaf.status, leaf.error, leaf.reward, len(leaf.turns)) == (Status.TRUNCATED, "pruned", 4.0, 4)
    assert leaf.num_tokens == leaf.turns[-1].end, "what no turn answered is not kept"
    assert (trunk.status, trunk.reward) == (Status.FINISHED, 6.0)


class Guided(Trail):
    """A trail on which every turn but "south" is right, and which succeeds without one."""

    def step(self, action):
        step = super().step(action)
        return replace(step, matches=action.content != "south", success="south" not in self.said)


def test_a_failed_episode_is_tried_again_from_before_its_first_wrong_turn(renderer):
    task = Task("t", f"{__name__}:Guided", 0)
    # The trunk says north, south, east, west; so what is recycled is its first turn.
    trunk, leaf = run(renderer, Walker(renderer), 2, task, branches=1, fork_at="first_error")
    assert (trunk.success, leaf.info["branch_of"], leaf.info["branch_turn"]) == (False, 0, 1)
    assert [bool(leaf.loss_mask[turn.start : turn.end].all()) for turn in leaf.turns] == [
        False,
        True,
        True,
        True,
    ]


def test_without_a_failure_to_recycle_whole_episodes_are_played(renderer):
    found = run(renderer, Walker(renderer), 2, branches=1, fork_at="first_error")
    assert [t.info.get("branch_turn") for t in found] == [None, None]


def test_hinted_episodes_begin_with_the_experts_turns_and_train_only_their_own(renderer):
    task = Task("t", ENV, 0, data={"hint": ["west", {"role": "assistant", "content": "east"}, "north"]})
    hinted, free = run(renderer, Walker(renderer), 2, task, hinted=1, hint_turns=2)
    texts = [renderer.text(hinted.token_ids[turn.start : turn.end]) for turn in hinted.turns[:2]]
    assert texts == ["west", "east"]
    assert hinted.info["hint_turns"] == 2
    assert not hinted.loss_mask[: hinted.turns[2].start].any()
    assert hinted.loss_mask[hinted.turns[2].start : hinted.turns[2].end].all()
    assert "hint_turns" not in free.info
    assert free.loss_mask[free.turns[0].start]


@pytest.mark.parametrize("data", [{}, {"hint": []}, {"hint": "west"}])
def test_a_task_without_a_hint_is_played_freely(renderer, data):
    assert hint(Task("t", ENV, 0, data=data), 2, renderer.assistant) is None
    (played,) = run(renderer, Walker(renderer), 1, Task("t", ENV, 0, data=data), hinted=1)
    assert played.loss_mask[played.turns[0].start]


class Judged(Trail):
    """A trail whose sessions succeed as listed, in the order in which they open, and always after that."""

    verdicts: ClassVar[list[bool]] = []

    def reset(self):
        self.success = type(self).verdicts.pop(0) if type(self).verdicts else True
        return super().reset()

    def step(self, action):
        return replace(super().step(action), success=self.success)


EXPERT = ["west", "east", "north", "south"]


@pytest.mark.parametrize(
    ("verdicts", "given"),
    [
        # Half of four turns; three quarters of the failures come to three turns; all of them leave one turn.
        ([True, False, True, False], 2),
        ([False, True, False, False], 3),
        ([False, False, False, False], 3),
        ([True, True, True, False], 1),
        ([True, True, True, True], 0),
    ],
)
def test_a_hint_is_as_long_as_the_failures_without_it_ask_for(renderer, verdicts, given):
    Judged.verdicts = list(verdicts)
    task = Task("t", f"{__name__}:Judged", 0, data={"hint": EXPERT})
    played = run(renderer, Walker(renderer), 6, task, hinted=2, hint_turns=None, by_difficulty=True)
    assert [t.episode_index for t in played] == list(range(6))
    assert [t.info.get("hint_turns", 0) for t in played] == [0, 0, 0, 0, given, given]
    assert [t.success for t in played[:4]] == verdicts
    for t in played[4:]:
        texts = [renderer.text(t.token_ids[turn.start : turn.end]) for turn in t.turns[:given]]
        assert texts == EXPERT[:given]
        sampled = [bool(t.loss_mask[turn.start : turn.end].all()) for turn in t.turns]
        assert sampled == [False] * given + [True] * (4 - given)


def test_a_task_without_a_hint_is_played_freely_where_hints_follow_the_difficulty(renderer):
    played = run(renderer, Walker(renderer), 4, hinted=2, hint_turns=None, by_difficulty=True)
    assert [t.info.get("hint_turns") for t in played] == [None] * 4
    assert [t.episode_index for t in played] == [0, 1, 2, 3]


MILL = {"role": "assistant", "content": "west by the old mill"}


class TwoMinded(Walker):
    """Might have begun its third turn as it begins "west by the old mill", which its branch goes on to say: its first
    `ahead` tokens when it looks ahead."""

    def __init__(self, renderer, ahead):
        super().__init__(renderer)
        self.ahead, self.mill = ahead, renderer.assistant(MILL)
        self.asked = {}

    async def generate(self, request):
        if request.decoding is not None:
            self.asked["likeliest"] = request
            east = self.renderer.assistant({"role": "assistant", "content": "east"})[0]
            start = np.flatnonzero(request.token_ids == east)[0]
            two = {int(request.token_ids[start]): np.log(0.45), int(self.mill[0]): np.log(0.40)}
            likeliest = [two if i == start else {0: np.log(0.9), 1: np.log(0.1)} for i in range(start + 1)]
            return replace(self.part(0, 1), prompt_logprobs=tuple(likeliest))
        if "-ahead-" in request.id:
            self.asked["ahead"] = request
            return self.part(1, min(self.ahead, 1 + request.max_tokens, len(self.mill)))
        if request.token_ids[-self.ahead :].tolist() == self.mill[: self.ahead].tolist():
            self.asked["rest"] = request
            return self.part(self.ahead, len(self.mill))
        return await super().generate(request)

    def part(self, start, end):
        size = end - start
        reason = "stop" if end == len(self.mill) else "length"
        return Generated(
            self.mill[start:end], np.full(size, -0.3, np.float32), np.full(size, 5, np.int32), reason
        )


def run_inside_turns(renderer, walker, env="Trail", max_tokens_per_turn=24):
    settings = EpisodeSettings(Limits(0, max_tokens_per_turn, 400), check_history=True)
    player = ChatPlayer(walker, LocalEnvs(), renderer, parse_hermes, settings)
    inside = TokenBranches(walker, settings.limits, renderer.stop_token_ids, None)
    runner = EpisodeGroupRunner(player, branches=1, fork_at="look_ahead", inside_turns=inside)
    lease = Lease("l", Task("t", f"{__name__}:{env}", 0), 3, 3, 2, 1, 60.0)
    return asyncio.run(runner.run_group(lease, "w", 20.0)).trajectories


@pytest.mark.parametrize("ahead", [9, 20])
def test_a_branch_inside_a_turn_begins_with_the_token_that_its_parent_might_have_taken(renderer, ahead):
    walker = TwoMinded(renderer, ahead)
    trunk, leaf = run_inside_turns(renderer, walker)
    turn = leaf.turns[2]
    assert leaf.info["branch_of"] == 0
    assert (leaf.info["branch_turn"], leaf.info["branch_token"]) == (2, 0)
    assert renderer.text(leaf.token_ids[turn.start : turn.end]) == "west by the old mill"
    assert leaf.info["history_matches"] is True
    # The first token is as likely as the engine said, the others as they were sampled; what is shared is not trained.
    assert leaf.behavior_logprobs[turn.start : turn.end].tolist() == pytest.approx(
        [np.log(0.4)] + [-0.3] * (len(walker.mill) - 1)
    )
    assert leaf.versions[turn.start : turn.end].tolist() == [5] * len(walker.mill)
    assert leaf.loss_mask[turn.start : turn.end].all()
    assert not leaf.loss_mask[: turn.start].any()
    assert leaf.token_ids[: turn.start].tolist() == trunk.token_ids[: turn.start].tolist()
    # What was looked at is kept, and only the rest is sampled.
    asked = walker.asked
    assert asked["ahead"].token_ids.tolist() == [*trunk.token_ids[: turn.start], walker.mill[0]]
    assert (asked["ahead"].max_tokens, asked["ahead"].session) == (19, walker.requests[0].session)
    assert ("rest" in asked) == (ahead == 9)
    if ahead == 9:
        assert asked["rest"].token_ids.tolist() == [*trunk.token_ids[: turn.start], *walker.mill[:9]]
        assert asked["rest"].max_tokens == 24 - 9
    assert len(walker.requests) == 4 + 1, "the last turn is its own, the first two are given"


class Forgetful(Trail):
    """A trail that says another thing in every session."""

    sessions: ClassVar[list[int]] = []

    def reset(self):
        self.sessions.append(0)
        return super().reset()

    def step(self, action):
        return replace(
            super().step(action), messages=[{"role": "user", "content": WORDS[len(self.sessions) % 4]}]
        )


def test_what_was_sampled_after_another_context_is_sampled_again(renderer):
    walker = TwoMinded(renderer, 9)
    _, leaf = run_inside_turns(renderer, walker, "Forgetful")
    assert "ahead" in walker.asked
    assert "rest" not in walker.asked
    assert len(walker.requests) == 4 + 2
    assert leaf.behavior_logprobs[leaf.turns[2].start] != pytest.approx(np.log(0.4))


class Silent(TwoMinded):
    """Its engine does not say which tokens are likely."""

    async def generate(self, request):
        if request.decoding is not None:
            raise InfrastructureError("no engine")
        return await super().generate(request)


class Sulking(Trail):
    """A trail whose first session fails."""

    sessions: ClassVar[list[int]] = []

    def reset(self):
        self.sessions.append(0)
        if len(self.sessions) <= 2:
            raise RuntimeError("not now")
        return super().reset()


def test_failed_episodes_are_not_looked_into(renderer):
    walker = TwoMinded(renderer, 9)
    failed, whole = run_inside_turns(renderer, walker, "Sulking")
    assert (failed.status, whole.status) == (Status.FAILED, Status.FINISHED)
    assert walker.asked == {}


def test_whole_episodes_are_played_where_no_engine_says_which_tokens_are_likely(renderer):
    found = run_inside_turns(renderer, Silent(renderer, 9))
    assert [t.info.get("branch_turn") for t in found] == [None, None]
    assert [t.status for t in found] == [Status.FINISHED] * 2


def test_a_branch_that_a_turns_limit_cuts_ends_there(renderer):
    walker = TwoMinded(renderer, 9)
    _, leaf = run_inside_turns(renderer, walker, max_tokens_per_turn=9)
    assert (leaf.status, leaf.error) == (Status.TRUNCATED, "max_tokens_per_turn")
    assert "rest" not in walker.asked
    assert leaf.turns[2].end - leaf.turns[2].start == 9
