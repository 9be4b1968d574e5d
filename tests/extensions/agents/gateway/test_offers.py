"""Episodes that agents elsewhere ask for: what they are given, what becomes of their word, and of those who vanish."""

import asyncio
from types import SimpleNamespace

import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.agent_player import AgentSettings, LocalHost
from asyncrl.extensions.agents.gateway.offers import OfferingPlayer, Offers
from asyncrl.rollout.player import EpisodeRequest, play_with_retries
from asyncrl.types import FailureClass, Status, Task

TASK = Task("t", "agent", 4)
URL = "http://gateway.test:1"
SHORT_S = 5.1
"""An episode's time that leaves its agent a tenth of a second."""


@pytest.fixture
def scene(make_gateway):
    """Offers, the gateway they are played through, and `play(index)`, which offers an episode."""
    gateway, offers = make_gateway(lambda prompt: "fine"), Offers(60.0)
    player = OfferingPlayer(LocalHost(gateway.episodes, URL), offers, AgentSettings(temperature=0.5))

    def play(index=0, timeout_s=60.0, attempts=False):
        request = EpisodeRequest(TASK, index, f"e{index}", timeout_s=timeout_s)
        return asyncio.ensure_future(play_with_retries(player, request) if attempts else player.play(request))

    return SimpleNamespace(gateway=gateway, offers=offers, play=play)


async def ask(scene):
    """Ask for an episode as the route does; return the task, where to play it, and the episode."""
    while (claim := scene.offers.take()) is None:
        await asyncio.sleep(0)
    task, told = await claim.offer
    return task, told, scene.gateway.episodes.by_id(told.id)


async def say(scene, episode):
    chat = scene.gateway.openai(episode).chat.completions
    return await chat.create(model="policy", messages=[{"role": "user", "content": "how?"}])


def end(scene, episode, **body):
    """End an episode as the route does."""
    scene.offers.check(episode, body)
    answer = episode.finish(body)
    scene.gateway.episodes.ended(episode)
    scene.offers.finished(episode, body)
    return answer


def test_an_episode_that_is_played_and_judged_elsewhere_has_the_tokens_that_were_sampled_and_its_reward(
    scene,
):
    async def scenario():
        playing = scene.play(index=2)
        task, told, episode = await ask(scene)
        assert (task["id"], task["seed"], task["episode_index"], task["timeout_s"]) == ("t", 4, 2, 55.0)
        assert told.url == URL
        await say(scene, episode)
        answered, _ = end(scene, episode, reward=0.25, success=True, components={"form": 1.0})
        return (await playing), answered, episode

    (trajectory,), answered, episode = asyncio.run(scenario())
    assert (trajectory.status, trajectory.failure) == (Status.FINISHED, None)
    assert (trajectory.reward, trajectory.success, trajectory.components) == (0.25, True, {"form": 1.0})
    assert (trajectory.task_id, trajectory.episode_index) == ("t", 2)
    sampled = scene.gateway.engine.tokens("fine").tolist()
    assert trajectory.token_ids[trajectory.loss_mask].tolist() == sampled
    assert trajectory.token_ids.tolist() == answered[0].token_ids.tolist()
    assert scene.gateway.engine.requests[0].temperature == 0.5
    # The answer may have been lost on its way.
    assert scene.gateway.episodes.by_id(episode.id).result[0] is answered


def test_those_who_ask_get_what_has_waited_longest_and_a_group_is_wanted_for_those_without_an_episode(scene):
    async def scenario():
        scene.offers.asking = lambda: 1
        assert scene.offers.wanted([])
        assert not scene.offers.wanted(["t"]), "its episodes are about to be offered"
        playing = [scene.play(index) for index in range(3)]
        await asyncio.sleep(0)
        assert scene.offers.waiting == 3 and not scene.offers.wanted(["t"])
        given = [(await ask(scene))[0]["episode_index"] for _ in playing]
        assert scene.offers.wanted(["t"]) and scene.offers.held == 3
        scene.offers.asking = lambda: 0
        assert not scene.offers.wanted(["t"])
        for one in playing:
            one.cancel()
        return given

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_an_episode_that_is_not_finished_in_time_is_an_infrastructure_failure_and_its_key_ends(scene):
    async def scenario():
        playing = scene.play(timeout_s=SHORT_S)
        _, _, episode = await ask(scene)
        await say(scene, episode)
        episode.add_reward({"reward": 1.0})
        return (await playing), episode

    (trajectory,), episode = asyncio.run(scenario())
    assert (trajectory.status, trajectory.failure) == (Status.FAILED, FailureClass.INFRASTRUCTURE)
    assert (
        "abandoned: the agent that asked for this episode did not finish it within 0.1 s" in trajectory.error
    )
    assert (trajectory.num_sampled, trajectory.reward) == (0, 0.0)
    assert scene.gateway.episodes.by_key(episode.key) is None
    assert scene.offers.held == 0


@pytest.mark.parametrize(
    ("timeout_s", "idle_s", "words"), [(60.0, 0.05, "for 0.05 s"), (0.05, 60.0, "within 0.05 s")]
)
def test_an_episode_that_nobody_asks_for_is_an_infrastructure_failure(scene, timeout_s, idle_s, words):
    scene.offers.idle_s = idle_s

    async def scenario():
        return await scene.play(timeout_s=timeout_s)

    (trajectory,) = asyncio.run(scenario())
    assert trajectory.failure is FailureClass.INFRASTRUCTURE
    assert trajectory.error == f"InfrastructureError: abandoned: nobody asked for this episode {words}"
    assert scene.offers.waiting == 0


def test_episodes_wait_while_another_one_is_played(scene):
    scene.offers.idle_s = 0.05

    async def scenario():
        first, second = scene.play(0), scene.play(1)
        _, _, episode = await ask(scene)
        await asyncio.sleep(0.3)
        assert not second.done()
        await say(scene, episode)
        end(scene, episode, reward=1.0)
        return (await first) + (await second)

    played, waited = asyncio.run(scenario())
    assert played.status is Status.FINISHED
    assert "nobody asked" in waited.error


def test_an_episode_that_is_given_up_is_offered_again(scene):
    async def scenario():
        playing = scene.play(attempts=True)
        _, _, left = await ask(scene)
        scene.offers.give_up(left)
        _, _, episode = await ask(scene)
        assert episode.id != left.id
        await say(scene, episode)
        end(scene, episode, reward=1.0)
        return await playing

    (trajectory,) = asyncio.run(scenario())
    assert (trajectory.reward, trajectory.status, trajectory.info["attempts"]) == (1.0, Status.FINISHED, 2)


@pytest.mark.parametrize("failure", ["infrastructure", "environment", "agent"])
def test_a_failure_that_is_reported_is_one_of_its_class_with_its_reason(scene, failure):
    async def scenario():
        playing = scene.play()
        _, _, episode = await ask(scene)
        await say(scene, episode)
        end(scene, episode, status="failed", failure=failure, error="the sandbox died")
        return await playing

    (trajectory,) = asyncio.run(scenario())
    assert (trajectory.status, trajectory.failure) == (Status.FAILED, failure)
    assert trajectory.error.endswith("the sandbox died")


def test_an_end_that_says_nothing_of_the_policy_is_refused_and_the_episode_stays_open(scene):
    async def scenario():
        playing = scene.play()
        _, _, episode = await ask(scene)
        with pytest.raises(InputError, match="no call of this episode was answered; finish it with status"):
            end(scene, episode, reward=1.0)
        await say(scene, episode)
        with pytest.raises(InputError, match=r"finish\.reward: missing, and none was sent before"):
            end(scene, episode)
        episode.add_reward({"reward": 0.5})
        end(scene, episode)
        return await playing

    (trajectory,) = asyncio.run(scenario())
    assert (trajectory.status, trajectory.reward) == (Status.FINISHED, 0.5)


def test_a_lease_that_is_lost_ends_its_episodes(scene):
    async def scenario():
        playing = [scene.play(index) for index in range(2)]
        _, _, episode = await ask(scene)
        for one in playing:
            one.cancel()
        await asyncio.wait(playing)
        return episode

    episode = asyncio.run(scenario())
    assert scene.gateway.episodes.by_key(episode.key) is None
    assert (scene.offers.waiting, scene.offers.held) == (0, 0)


def test_who_is_given_an_episode_whose_lease_is_lost_at_that_moment_asks_again(scene):
    async def scenario():
        playing = scene.play()
        await asyncio.sleep(0)
        claim = scene.offers.take()
        playing.cancel()
        return await asyncio.wait_for(claim.offer, 30)

    assert asyncio.run(scenario()) is None
