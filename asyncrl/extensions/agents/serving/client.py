"""Client of the gateway's episode routes, for the process that runs agents; agents use the other routes.

A gateway alone opens the episodes it is asked to; one that has joined a run hands out the run's (`next`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncrl.credentials import bearer
from asyncrl.data.codec import trajectory_from_map
from asyncrl.extensions.agents.gateway.agents import OpenEpisode
from asyncrl.extensions.agents.gateway.recorded_episode import EpisodeSpec, finish_body
from asyncrl.services.http.client import HttpClient
from asyncrl.types import FailureClass, Status, Trajectory

PREFIX = "/asyncrl/v1/episodes"


class GatewayClient:
    """Opens and finishes episodes. Raises what the gateway raises, `UnavailableError` when it cannot be reached."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._http = HttpClient(url, bearer(token, "gateway"))

    async def close(self) -> None:
        await self._http.close()

    async def open(self, spec: EpisodeSpec) -> OpenEpisode:
        """Open an episode. An episode that is never finished expires, so a repeated call does no harm."""
        answer = await self._http.post(PREFIX, spec.model_dump(), self.timeout_s)
        return OpenEpisode(answer["id"], answer["key"], self.url, answer["reward_key"])

    async def next(self, wait_s: float = 30.0) -> tuple[dict[str, Any], OpenEpisode] | None:
        """Ask a gateway that has joined a run for an episode: its task, as a recipe's command gets it, and where to
        play it. None where there is none within `wait_s`, 60 s at most."""
        # An answer that is lost holds an episode until its time is up, so that the call is not repeated.
        answer = await self._http.post(f"{PREFIX}/next", {"wait_s": wait_s}, wait_s + self.timeout_s, False)
        if (told := answer["episode"]) is None:
            return None
        return told["task"], OpenEpisode(told["id"], told["key"], told["url"], told["reward_key"])

    async def open_key(self) -> tuple[str, str]:
        """Make a key whose calls are not recorded, for evaluation; return its id and the key."""
        answer = await self._http.post("/asyncrl/v1/keys", {}, self.timeout_s, repeat=False)
        return answer["id"], answer["key"]

    async def describe(self, episode_id: str) -> dict[str, Any]:
        """Return the state of an episode: `calls`, `branches`, `running`, `reward`, `limit`, `counters`, ..."""
        return await self._http.get(f"{PREFIX}/{episode_id}", self.timeout_s)

    async def reward(
        self, episode_id: str, reward: float, call_id: str = "", components: dict[str, float] | None = None
    ) -> None:
        """Add a reward to a call, or to the episode if none is given. Not repeated when the answer is lost."""
        body: dict[str, Any] = {"reward": reward, "components": components or {}}
        if call_id:
            body["call_id"] = call_id
        await self._http.post(f"{PREFIX}/{episode_id}/reward", body, self.timeout_s, repeat=False)

    async def finish(
        self,
        episode_id: str,
        reward: float | None = None,
        components: dict[str, float] | None = None,
        success: bool | None = None,
        status: Status | None = None,
        failure: FailureClass | None = None,
        error: str = "",
    ) -> tuple[Sequence[Trajectory], dict[str, Any]]:
        """End an episode; return its trajectories and its state. A repeated call returns the first answer.

        reward: adds to those that were sent before. Without a status it is "finished", or "truncated" where a call was
        refused for one of its limits.
        """
        body = finish_body(reward or 0.0, components, success, status, failure, error)
        if reward is None:
            del body["reward"]
        answer = await self._http.post(f"{PREFIX}/{episode_id}/finish", body, self.timeout_s)
        found = [
            trajectory_from_map(raw, f"trajectories[{n}]") for n, raw in enumerate(answer["trajectories"])
        ]
        return found, answer["summary"]
