"""One episode behind the gateway: its settings, its tree of calls, its rewards, its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from asyncrl.env.protocol import MAX_REWARD
from asyncrl.errors import ConflictError, InputError
from asyncrl.extensions.agents.gateway.body import checked
from asyncrl.extensions.agents.gateway.export import MAX_TRAJECTORIES, Verdict, export_tree
from asyncrl.extensions.agents.gateway.tree import Call, CallTree, add_components
from asyncrl.generation import Generated
from asyncrl.types import MAX_GROUP_SIZE, FailureClass, Status, Trajectory

MAX_COUNTERS = 256
"""Names of counters in one episode."""


class EpisodeEnded(ConflictError):
    """The episode has been finished; its key serves no further calls."""


class EpisodeSpec(BaseModel):
    """What is fixed for all calls of an episode when it is opened. Sizes in tokens; 0 means no limit of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task_id: str = Field(min_length=1, max_length=1024)
    episode_index: int = Field(0, ge=0, lt=MAX_GROUP_SIZE)
    temperature: float | None = Field(1.0, ge=0, le=100)
    """Holds for every call, whatever the agent asks for: the trainer's log-probabilities are at this temperature.
    None lets the agent choose."""
    max_tokens: int = Field(0, ge=0)
    """Longest context together with its answer."""
    max_tokens_per_turn: int = Field(0, ge=0)
    max_calls: int = Field(0, ge=0)
    seed: int | None = None
    """Makes sampling repeatable: each call's seed follows from this, the task, the episode and its context."""
    min_version: int = Field(0, ge=0)
    """Oldest policy version that may sample."""
    response_format: Literal["ignore", "refuse"] = "ignore"
    """What becomes of a call that asks for JSON of a schema: it is sampled plainly and counted, or refused. A mask
    would make the trainer's log-probabilities wrong."""
    max_trajectories: int = Field(MAX_TRAJECTORIES, ge=1)
    """Conversations that become trajectories, see `export.main_first`."""
    headers: dict[Annotated[str, Field(pattern="^(thread|caller|agent)$")], str] = Field(default_factory=dict)
    """Headers in which the agent's program says which of its conversations asks, beside those that are known."""
    housekeeping: list[str] = Field(default_factory=list, max_length=64)
    """Texts of first messages that only conversations of housekeeping have."""
    order: int = Field(0, ge=0)
    """Place among the requests that wait for an engine, lower ones first."""


def parse_spec(raw: Any) -> EpisodeSpec:
    """Read the body of `POST /asyncrl/v1/episodes`. Raises `InputError` naming the field."""
    return checked(EpisodeSpec, raw, "episode")


@dataclass(slots=True, eq=False)
class Episode:
    """An open episode."""

    id: str
    key: str
    """The agent's API key."""
    reward_key: str
    """With which the process that runs the agent reports rewards."""
    spec: EpisodeSpec
    clock: Callable[[], float] = time.monotonic
    recorded: bool = True
    """False for a key without an episode: its calls are answered and forgotten."""
    tree: CallTree = field(default_factory=CallTree)
    counters: Counter[str] = field(default_factory=Counter)
    """`calls`, `sampled_tokens`, `context_tokens`, `cached_tokens`, `rendered_turns`, `undelivered_calls`,
    `infrastructure_errors`, `rewards` (sent before the end), and `ignored: NAME` for what the episode fixes."""
    limit: str = ""
    """The limit that the agent's last call was refused for: `max_tokens` or `max_calls`."""
    cut: str = ""
    """The limit that cut the turn answered last."""
    lost: bool = False
    """Whether no engine could serve the agent's last call."""
    refusal: str = ""
    """What the last call was refused for."""
    reward: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    success: bool | None = None
    engine_s: float = 0.0
    running: dict[str, Any] = field(default_factory=dict)
    """Requests at the engines, by id, with the tasks that wait for them."""
    roots: int = 0
    """Conversations started."""
    contexts: Counter[bytes] = field(default_factory=Counter)
    """Calls made with each context, by digest."""
    started: float = 0.0
    touched: float = 0.0
    result: tuple[list[Trajectory], dict[str, Any]] | None = None
    """What `finish` returned, so that a repeated call returns the same."""
    counted: bool = False
    """Whether its counters are in the gateway's sums."""
    responses: dict[str, Any] = field(default_factory=dict)
    """Items of `/v1/responses` by response id, for `previous_response_id`."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Items that `/v1/responses` has answered with, by id, for `item_reference`."""
    sampled_keys: set[bytes] = field(default_factory=set)
    """Keys of all sampled messages, to notice those that come back in a rewritten history."""

    def __post_init__(self) -> None:
        self.started = self.touched = self.clock()

    def next_root(self) -> int:
        """Number of a new conversation."""
        self.roots += 1
        return self.roots - 1

    def count_call(self, read_ids: np.ndarray, generated: Generated) -> None:
        """Count one answer."""
        self.counters["calls"] += 1
        self.counters["sampled_tokens"] += len(generated.token_ids)
        self.counters["context_tokens"] += len(read_ids)
        self.counters["cached_tokens"] += generated.cached_tokens
        self.lost, self.refusal = False, ""
        self.touched = self.clock()

    def count_ignored(self, names: Sequence[str], program: str) -> None:
        """Count what a request asked for and did not get, and for which program and version."""
        for name in names:
            for key in (f"ignored: {name}", f"ignored of {program}: {name}"):
                # Clients choose these words, and a program that the policy wrote may send ever new ones.
                if key in self.counters or len(self.counters) < MAX_COUNTERS:
                    self.counters[key] += 1

    def check_open(self) -> None:
        """Raise `EpisodeEnded` after `finish`."""
        if self.result is not None:
            raise EpisodeEnded(f"episode {self.id} has ended")

    def add_reward(self, raw: dict[str, Any]) -> None:
        """Take `{reward, call_id?, components?, success?}`. Rewards add up. Raises `InputError`."""
        self.check_open()
        self._credit(raw)
        self.counters["rewards"] += "reward" in raw

    def finish(self, raw: dict[str, Any]) -> tuple[list[Trajectory], dict[str, Any]]:
        """End the episode: take a last reward and a status, return trajectories and counters.

        raw: `{status?, failure?, error?, reward?, components?, success?}`; `status` is "finished" unless given, or
        "truncated" when a call was refused for a limit. Repeating it returns the first answer.
        Raises `InputError`; the episode stays open then.
        """
        if self.result is not None:
            return self.result
        outcome: dict[str, Any] = {n: raw[n] for n in ("status", "failure", "error") if n in raw}
        status, failure, error = _outcome(outcome, self.limit)
        self._credit({name: value for name, value in raw.items() if name not in outcome})
        verdict = Verdict(status, failure, error, self.reward, self.components, self.success)
        timing = {"wall_s": self.clock() - self.started, "engine_s": self.engine_s}
        trajectories, drifted = export_tree(
            self.tree,
            self.spec.task_id,
            self.spec.episode_index,
            verdict,
            timing,
            self.spec.max_trajectories,
            self.spec.housekeeping,
        )
        self.counters["retokenized_tokens"] = drifted
        if left_out := len(self.tree.leaves()) - len(trajectories):
            self.counters["dropped_trajectories"] = max(0, left_out)
        self.result = trajectories, self.describe()
        return self.result

    def describe(self) -> dict[str, Any]:
        """What `GET /asyncrl/v1/episodes/ID` shows."""
        return {
            "id": self.id,
            "task_id": self.spec.task_id,
            "episode_index": self.spec.episode_index,
            "calls": len(self.tree.calls),
            "branches": len(self.tree.leaves()),
            "cut": self.cut,
            "lost": self.lost,
            "refusal": self.refusal,
            "running": len(self.running),
            "reward": self.reward + sum(call.reward for call in self.tree.calls),
            "limit": self.limit,
            "counters": dict(self.counters),
        }

    def _credit(self, raw: dict[str, Any]) -> None:
        unknown = set(raw) - {"reward", "call_id", "components", "success"}
        if unknown:
            raise InputError(f"reward.{min(unknown)}: unknown; allowed: reward, call_id, components, success")
        amount = _number(raw.get("reward", 0.0), "reward.reward")
        components = _components(raw.get("components", {}))
        success = raw.get("success")
        if success is not None and not isinstance(success, bool):
            raise InputError(f"reward.success must be true, false or null, got {success!r}")
        call_id = raw.get("call_id")
        credited: Episode | Call = self
        if call_id is not None:
            call = self.tree.by_id(str(call_id))
            if call is None:
                raise InputError(f"reward.call_id: this episode has no call {str(call_id)[:100]!r}")
            credited = call
        credited.reward += amount
        add_components(credited.components, components)
        self.success = self.success if success is None else success


def finish_body(
    reward: float,
    components: dict[str, float] | None,
    success: bool | None,
    status: Status | None,
    failure: FailureClass | None,
    error: str,
) -> dict[str, Any]:
    """Return the body that `Episode.finish` and the finish route take; without a status they determine it."""
    body: dict[str, Any] = {"reward": reward, "components": components or {}, "success": success}
    if status is not None:
        body |= {"status": status.value, "failure": failure.value if failure else None, "error": error}
    return body


def _outcome(raw: dict[str, Any], limit: str) -> tuple[Status, FailureClass | None, str]:
    default = Status.TRUNCATED if limit else Status.FINISHED
    try:
        status = Status(raw.get("status") or default)
        failure = FailureClass(raw["failure"]) if raw.get("failure") else None
    except ValueError:
        raise InputError(
            f"finish: status must be one of {', '.join(Status)} and failure one of {', '.join(FailureClass)}, "
            f"got {raw.get('status')!r} and {raw.get('failure')!r}"
        ) from None
    if (status is Status.FAILED) != (failure is not None):
        raise InputError(f"finish.failure must be given exactly when status is 'failed', got {failure}")
    return status, failure, str(raw.get("error") or (limit if status is Status.TRUNCATED else ""))


def _components(raw: Any) -> dict[str, float]:
    if not isinstance(raw, dict) or not all(isinstance(name, str) for name in raw):
        raise InputError("reward.components must map names to numbers")
    return {name: _number(value, f"reward.components.{name[:64]}") for name, value in raw.items()}


def _number(value: Any, where: str) -> float:
    if not _is_number(value) or not -MAX_REWARD <= value <= MAX_REWARD:
        raise InputError(f"{where} must be a number up to ±{MAX_REWARD:g}, got {str(value)[:100]}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
