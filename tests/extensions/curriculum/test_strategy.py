"""Solved tasks in the prompt of an episode: what is shown, and that it is context like any other."""

import asyncio

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.data.transcript import encode_transcript
from asyncrl.extensions.curriculum.examples import examples_extra
from asyncrl.extensions.curriculum.strategy import Examples, with_examples
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import SEEDED, Lease, Task
from tests.extensions.branches.test_strategy import ENV, Walker

CALL = {"id": "1", "function": {"name": "add", "arguments": {"a": 1}}}
WAY = encode_transcript(
    [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "I add.", "tool_calls": [CALL]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "two"},
    ],
    {2: 0, 4: 1},
)
TOLD = '[user] 1 + 1\n[assistant] I add.\nadd {"a": 1}\n[tool] 2\n[assistant] two'


def test_examples_come_before_the_first_user_message_without_their_system_messages():
    opening = [{"role": "system", "content": "You add."}, {"role": "user", "content": "2 + 2"}]
    system, user = with_examples(opening, [WAY, WAY])
    assert system == opening[0]
    assert user["content"] == (
        f"This is how similar tasks were solved.\n\nExample 1:\n{TOLD}\n\nExample 2:\n{TOLD}\n\n"
        "Now your own task:\n\n2 + 2"
    )
    assert opening[1]["content"] == "2 + 2", "the environment's messages stay as they are"


def test_a_prompt_of_parts_gets_a_part_and_one_without_a_user_stays():
    parts = [{"type": "text", "text": "2 + 2"}]
    (shown,) = with_examples([{"role": "user", "content": parts}], [WAY])
    assert shown["content"][1:] == parts
    assert shown["content"][0]["text"].startswith("This is how") and TOLD in shown["content"][0]["text"]
    alone = [{"role": "system", "content": "go"}]
    assert with_examples(alone, [WAY]) == alone
    assert with_examples(parts_of := [{"role": "user", "content": "go"}], ()) == parts_of


def play(renderer, examples):
    settings = EpisodeSettings(Limits(0, 16, 900), check_history=True)
    player = ChatPlayer(Walker(renderer), LocalEnvs(), renderer, parse_hermes, settings)
    lease = Lease("l", Task("t", ENV, 0), 3, 3, 2, 1, 60.0, extras=examples_extra(examples))
    return asyncio.run(EpisodeGroupRunner(player, [Examples()]).run_group(lease, "w", 20.0)).trajectories


def test_an_episode_is_sampled_and_trained_with_its_examples(renderer):
    for seeded, plain in zip(play(renderer, (WAY,)), play(renderer, ()), strict=True):
        start = seeded.turns[0].start
        prompt = renderer.tokenizer.decode(seeded.token_ids[:start].tolist())
        assert TOLD in prompt and prompt.index(TOLD) < prompt.index("Now your own task:\n\ngo")
        assert not seeded.loss_mask[:start].any()
        assert (seeded.info[SEEDED], seeded.info["history_matches"]) == (1, True)
        assert SEEDED not in plain.info
        assert len(seeded.turns) == len(plain.turns) == 4
        assert seeded.num_tokens - plain.num_tokens == start - plain.turns[0].start > 0
