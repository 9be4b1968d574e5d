"""The messages that cross process boundaries: tasks, trajectories and groups. All frozen, all slotted.

Axis letters used in names across the project: P groups per step, G episodes per group, B sequences in a
batch, T token positions, L tokens of one trajectory, K turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

Message = dict[str, Any]
"""A chat message in the form chat templates take: `role`, `content`, and for tools `tool_calls`, `tool_call_id`,
`name`. The content is a text, or a list of parts: `{"type": "text", "text": ...}` and images (`asyncrl.images`)."""

MAIN_POLICY = "main"
"""Name of the policy that plays the agents which no entry of `policies` names."""

MAX_REWARD = 1e12
"""Far beyond any sensible reward, and small enough that sums of many stay finite."""
MAX_TRAJECTORY_TOKENS = 2**24
"""Tokens of one trajectory on its way between processes."""
MAX_GROUP_SIZE = 4096
"""Trajectories of one group."""
NOT_SAMPLED = -1
"""Version of a token that no policy sampled (prompt, observation, template)."""


GREEDY_REWARD = "greedy_reward"
"""Key of `Trajectory.info`: the reward of a greedy rollout of the same task, where the objective asks for one."""


ANSWER_IDS = "answer_ids"
"""Key of `Trajectory.info`: the tokens of the task's right answer, where the objective asks for them."""


SEEDED = "examples"
"""Key of `Trajectory.info`: how many solved tasks its prompt shows, where a curriculum seeds tasks that fail."""


TURN_ORDER = "turn_order"
"""Key of `Trajectory.info`: of each of its turns `[after, place]`, where an agent asks for turns when it likes. So many
turns of the episode had been answered when this one was asked for, and when it was answered."""
EXTRACTED = "extracted"
"""Key of `Trajectory.info`: what was taken as the last answer, where the environment says so."""
MAX_EXTRACTED = 1000
"""Characters of it that are kept."""


OPPONENT = "opponent"
"""Key of `Trajectory.info`: the past version of the policy that played the other side, where one did."""


IMAGES = "images"
"""Key of `Trajectory.extras`: the `PlacedImage`s that the policy saw, in the order of their tokens, none of which was
sampled."""


class Status(StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    TRUNCATED = "truncated"
    FAILED = "failed"


class FailureClass(StrEnum):
    """Whose fault a failed episode was. Only `AGENT` failures say anything about the policy."""

    AGENT = "agent"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"
    JUDGE = "judge"
    """The episode was played, but its judge or reward model returned no score."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem to solve. `id` is unique within a run."""

    id: str
    env: str
    """Registered name or import path of the environment."""
    seed: int = 0
    """All that an environment needs to build the problem, unless `data` says more."""
    split: str = "train"
    data: dict[str, Any] = field(default_factory=dict)
    """JSON-serialisable problem data; empty for procedural environments."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen and reported for answers that nothing is trained on.

    The defaults sample from the policy itself, which is what training assumes.
    """

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    schema: str = ""
    """JSON schema that the answer follows; tokens that would leave it are masked."""
    top_logprobs: int | None = None
    """Report this many of the likeliest tokens beside each; None reports none."""
    prompt_logprobs: bool = False
    """Report them for the context too."""

    @property
    def whole(self) -> bool:
        """Whether the turn must be sampled in one request, because earlier tokens matter or are reported."""
        penalties = self.presence_penalty, self.frequency_penalty, self.repetition_penalty
        return bool(self.schema) or penalties != (0.0, 0.0, 1.0) or self.top_logprobs is not None


@dataclass(frozen=True, slots=True)
class Turn:
    """One sampled assistant turn inside a trajectory: token positions `[start, end)`."""

    start: int
    end: int
    reward: float = 0.0
    """Reward the environment gave for this turn."""
    observation_id: str = ""
    """Identifies the observation the turn answered; equal ids are the same state (step-level credit)."""
    matches: bool | None = None
    """Whether the action agreed with a recorded or expert one, where the environment says so (UI-S1)."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image among tokens: the positions `[start, end)` all hold the model's image token."""

    start: int
    end: int
    key: str
    """Hash of `data` (`images.image_key`). Images of one key share their bytes."""
    data: bytes
    """The encoded file: PNG, JPEG or WebP."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode as the trainer sees it. The four arrays have one length L."""

    task_id: str
    episode_index: int
    """Position inside the group, 0..G-1."""
    token_ids: np.ndarray
    """[L] int32, exactly the ids the engine read and sampled; never re-tokenized."""
    loss_mask: np.ndarray
    """[L] bool, True where the policy sampled the token."""
    behavior_logprobs: np.ndarray
    """[L] float32, log-probability under the engine's sampling distribution; 0.0 where not sampled."""
    versions: np.ndarray
    """[L] int32, policy version that sampled the token; `NOT_SAMPLED` elsewhere."""
    turns: tuple[Turn, ...]
    reward: float
    """Trajectory reward: the sum of turn rewards unless the environment says otherwise."""
    status: Status
    components: dict[str, float] = field(default_factory=dict)
    """Named parts of the reward."""
    success: bool | None = None
    """The environment's verdict, None without one."""
    failure: FailureClass | None = None
    """Set exactly when `status` is FAILED."""
    error: str = ""
    """What went wrong (FAILED), which limit was hit (TRUNCATED), or what the agent did that ended it (FINISHED)."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds: `wall_s`, `engine_s`, `env_s`, and `judge_s` where a judge scored it."""
    info: dict[str, Any] = field(default_factory=dict)
    """What workers say of it besides: its place in a group, the agent, counts. `data.trajectory_info` has all keys."""
    conversation: str = ""
    """The messages as JSON, for people to read, see `data.transcript`; "" where they were not kept."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What else is known of its tokens, by the kind of extra (`data.token_extras`). A kind that it has none of has no
    key."""
    engines: tuple[str, ...] = ()
    """Address of the engine that sampled each turn, "" where several did or none is known; one for all turns where it
    is the same, empty where none is known."""
    pooled_from: str = ""
    """The task and episode of an earlier success that the trainer has added to a group. Like `peer` no part of the wire
    form: the trainer alone knows where a trajectory is from, and believes nobody else."""
    peer: str = ""
    """The other run that sampled it, where the trainer took it from there; "" for the run's own."""

    def without(self, extra: str) -> Trajectory:
        """Return the trajectory without one kind of extra."""
        if extra not in self.extras:
            return self
        return replace(self, extras={name: value for name, value in self.extras.items() if name != extra})

    @property
    def rollout(self) -> int:
        """Index of its episode within the group: an episode that branches gives several trajectories."""
        return int(self.info.get("rollout", self.episode_index))

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_sampled(self) -> int:
        return int(np.count_nonzero(self.loss_mask))

    @property
    def usable(self) -> bool:
        """True when the episode may enter group statistics and the loss."""
        return self.status is not Status.FAILED and self.num_sampled > 0

    @property
    def min_version(self) -> int:
        """Oldest version among sampled tokens; `NOT_SAMPLED` when nothing was sampled."""
        return int(self.versions[self.loss_mask].min()) if self.num_sampled else NOT_SAMPLED


@dataclass(frozen=True, slots=True)
class Group:
    """G episodes of one task, the unit of admission, staleness and advantage estimation."""

    id: str
    task: Task
    version: int
    """Version at admission. Every sampled token carries at least this version."""
    trajectories: tuple[Trajectory, ...]
    worker: str = ""

    @property
    def usable(self) -> tuple[Trajectory, ...]:
        return tuple(t for t in self.trajectories if t.usable)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to roll out one group until `expires_in_s` seconds from now, renewable."""

    id: str
    """Also the id of the group to put."""
    task: Task
    version: int
    """Version at admission."""
    deadline: int
    """The group must be trained in the step that starts at this version at the latest."""
    group_size: int
    attempt: int
    """1 for the first lease of the task, increased when a lease is lost."""
    expires_in_s: float
    order: int = 0
    """Place in the order of leases. Older leases are due earlier, and engines serve them first."""
    max_turns: int = 0
    """Turns of its episodes, where fewer than the run allows; 0 for as many as it allows."""
    extras: dict[str, Any] = field(default_factory=dict)
    """JSON values for ways to play the group, written by hooks of the ledger; unknown names are passed over."""
