"""What the core asks of agents, without an engine."""

import asyncio

import pytest

from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.tool_formats import load_format
from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.agents.elsewhere import AgentEpisodes
from asyncrl.extensions.agents.gateway.offers import Offers
from asyncrl.extensions.agents.serving.joined_service import offering
from asyncrl.rollout.elsewhere import PlayerParts
from asyncrl.types import Task

TASK = Task("t", "agent", 0)


def parts_of(model, **agent):
    config = parse_config(
        {"model": {"path": model}, "env": {"name": "agent", "config": agent}, "eval": {"tasks": 0}}
    )
    renderer = load_renderer(model)
    return PlayerParts(config, None, renderer, load_format("hermes", "", renderer))


def test_agents_that_a_worker_starts_play_as_many_groups_as_engines_have_room_for(tiny_model):
    players = AgentEpisodes().players(parts_of(tiny_model, callable="json:dumps"))
    assert [players.limit(room, ["a"]) for room in (0, 3)] == [0, 3]


def test_a_worker_plays_no_group_of_agents_that_ask_for_their_episodes(tiny_model):
    players = AgentEpisodes().players(parts_of(tiny_model, offered=True))
    assert players.limit(3, []) == 0


def test_where_agents_ask_a_group_is_leased_for_one_for_whom_there_is_no_episode(tiny_model):
    async def limits():
        offers = Offers(60.0)
        players = offering(offers)(parts_of(tiny_model, callable="json:dumps"))
        nobody = players.limit(3, [])
        offers.asking = lambda: 1
        asked = players.limit(3, [])
        claim = asyncio.create_task(offers.claimed("a", 60.0))
        await asyncio.sleep(0)
        offered = players.limit(3, ["a"])
        taken = offers.take()
        await claim
        return nobody, asked, offered, taken is not None, players.limit(3, ["a"]), players.limit(1, ["a"])

    assert asyncio.run(limits()) == (0, 1, 1, True, 2, 1)


def test_an_agent_that_cannot_be_started_is_refused_by_its_key():
    with pytest.raises(ConfigError, match=r"env\.config\.command: there is no program 'no-such-program'"):
        AgentEpisodes().check({"command": ["no-such-program"]}, TASK, 60.0)
    with pytest.raises(ConfigError, match=r"env\.config\.cwd: there is no folder 'nowhere'"):
        AgentEpisodes().check({"command": ["true"], "cwd": "nowhere"}, TASK, 60.0)
    AgentEpisodes().check({"command": ["true"]}, TASK, 60.0)


def test_agents_that_ask_for_their_episodes_play_no_evaluation():
    with pytest.raises(ConfigError, match=r"env\.config\.offered: .* name an agent that a worker can start"):
        AgentEpisodes().check_evaluation({"offered": True})
    AgentEpisodes().check_evaluation({"callable": "json:dumps"})
