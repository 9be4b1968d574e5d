"""The episodes of a gateway: opened, found by key or id, dropped when they are idle for too long."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections import Counter
from collections.abc import Callable

from asyncrl.errors import ConflictError, UnavailableError
from asyncrl.extensions.agents.gateway.recorded_episode import Episode, EpisodeSpec
from asyncrl.extensions.agents.gateway.sampler import Sampler

KEY_PREFIX = "ep-"
REWARD_KEY_PREFIX = "reward-"
EVAL_KEY_PREFIX = "eval-"
MAX_KEYS = 1024
"""Keys without an episode at once; they do not expire."""
MAX_COUNTERS = 1024
"""Names among the sums; those of ignored parameters are in part the clients' words."""
ENDED_S = 60.0
"""How long the result of an episode can be fetched again."""


class NoEpisode(ConflictError):
    """No episode has this id or key."""


class Episodes:
    """Owns the episodes. One that nothing touches for `idle_s` seconds is dropped."""

    def __init__(
        self,
        sampler: Sampler,
        max_episodes: int = 65_536,
        idle_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sampler = sampler
        self.max_episodes = max_episodes
        self.idle_s = idle_s
        self.clock = clock
        self.counters: Counter[str] = Counter()
        """`opened`, `ended`, `expired`, and the sums of the counters of ended episodes."""
        self._by_id: dict[str, Episode] = {}
        self._by_key: dict[str, Episode] = {}
        self._by_reward_key: dict[str, Episode] = {}
        self._keys: dict[str, Episode] = {}
        """The unrecorded episodes of keys without an episode, by id."""

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, spec: EpisodeSpec) -> Episode:
        """Open an episode with fresh keys. Raises `UnavailableError` when there are too many."""
        if len(self._by_id) >= self.max_episodes:
            raise UnavailableError(f"all {self.max_episodes} episodes are open", retry_after_s=1.0)
        key, reward_key = (prefix + secrets.token_urlsafe(24) for prefix in (KEY_PREFIX, REWARD_KEY_PREFIX))
        episode = Episode(uuid.uuid4().hex, key, reward_key, spec, self.clock)
        self._by_id[episode.id] = self._by_key[key] = self._by_reward_key[reward_key] = episode
        self.counters["opened"] += 1
        return episode

    def open_key(self) -> Episode:
        """Return an unrecorded episode with a fresh key. Raises `UnavailableError` for too many."""
        if len(self._keys) >= MAX_KEYS:
            raise UnavailableError(
                f"there are {MAX_KEYS} keys without an episode; delete some", retry_after_s=1.0
            )
        key = EVAL_KEY_PREFIX + secrets.token_urlsafe(24)
        spec = EpisodeSpec(task_id=EVAL_KEY_PREFIX, temperature=None)
        opened = Episode(uuid.uuid4().hex, key, "", spec, self.clock, recorded=False)
        self._keys[opened.id] = self._by_key[key] = opened
        return opened

    def drop_key(self, key_id: str) -> None:
        """Revoke a key without an episode, and cancel its running requests. Raises `NoEpisode`."""
        if key_id not in self._keys:
            raise NoEpisode(f"no key {key_id[:100]!r}")
        dropped = self._keys.pop(key_id)
        self._by_key.pop(dropped.key, None)
        self.sampler.end(dropped)

    def by_id(self, episode_id: str) -> Episode:
        """Raises `NoEpisode`."""
        if episode_id not in self._by_id:
            raise NoEpisode(f"no episode {episode_id[:100]!r}; it ended or expired")
        return self._by_id[episode_id]

    def by_key(self, key: str) -> Episode | None:
        """The episode of a key, recorded or not.

        Keys are random, so a dictionary's timing tells nothing about them.
        """
        return self._by_key.get(key)

    def by_reward_key(self, key: str) -> Episode | None:
        """The episode that this key reports rewards of."""
        return self._by_reward_key.get(key)

    def ended(self, episode: Episode) -> None:
        """Count a finished episode once, and cancel its running requests."""
        if episode.counted:
            return
        episode.counted = True
        episode.touched = self.clock()
        self.counters["ended"] += 1
        for name, count in episode.counters.items():
            if name in self.counters or len(self.counters) < MAX_COUNTERS:
                self.counters[name] += count
        self.sampler.end(episode)

    def drop(self, episode: Episode) -> None:
        """Forget an episode and everything it recorded."""
        self._by_id.pop(episode.id, None)
        self._by_key.pop(episode.key, None)
        self._by_reward_key.pop(episode.reward_key, None)
        self.sampler.end(episode)

    async def reap(self, every_s: float = 5.0) -> None:
        """Drop idle episodes until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            self.expire()

    def expire(self) -> int:
        """Drop idle and long ended episodes; return how many."""
        now = self.clock()
        old = []
        for episode in self._by_id.values():
            limit_s = self.idle_s if episode.result is None else ENDED_S
            if not episode.running and now - episode.touched > limit_s:
                old.append(episode)
        for episode in old:
            self.counters["expired"] += episode.result is None
            self.drop(episode)
        return len(old)
