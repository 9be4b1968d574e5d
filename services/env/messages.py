"""Bodies of the environment service's JSON routes, for its checks and its OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from asyncrl.agent_time import STEP_TIMEOUT_S
from asyncrl.config_sections import MAX_STEP_S
from asyncrl.env.protocol import Action, ToolCall


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ToolCallBody(Body):
    id: str = ""
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ActionBody(Body):
    """The assistant turn: its text, its tool calls, and one message for each malformed call."""

    content: str = ""
    tool_calls: list[ToolCallBody] = Field(default_factory=list)
    parse_errors: list[str] = Field(default_factory=list)

    def to_action(self) -> Action:
        calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in self.tool_calls)
        return Action(self.content, calls, tuple(self.parse_errors))


class TaskBody(Body):
    """Only `env` must be given; an empty `id` becomes `seed-SEED`."""

    id: str = ""
    env: str = Field(min_length=1)
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    split: str = "train"
    data: dict[str, Any] = Field(default_factory=dict)

    def to_map(self) -> dict[str, Any]:
        return self.model_dump() | {"id": self.id or f"seed-{self.seed}"}


class OpenBody(Body):
    """A repeated `idempotency_key` gives the session it made."""

    task: TaskBody
    config: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: str = Field("", max_length=256)


class StepBody(Body):
    step_index: int = Field(ge=0)
    action: ActionBody
    timeout_s: float = Field(STEP_TIMEOUT_S, gt=0, le=MAX_STEP_S)


class SessionAnswer(BaseModel):
    session_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    max_turns: int
    least_step_s: float
    """What a step must be given for the environment's own limits of time."""


class OpenAnswer(SessionAnswer):
    lease_s: float


class ShowAnswer(SessionAnswer):
    next_step_index: int


class StepAnswer(BaseModel):
    messages: list[dict[str, Any]]
    reward: float
    done: bool
    success: bool | None
    components: dict[str, float]
    observation_id: str
    matches: bool | None
    truncated: bool
    agent: str | None
    tools: list[dict[str, Any]] | None
    rewards: dict[str, float]
    extracted: str
    ahead: dict[str, list[dict[str, Any]]]


class LeaseAnswer(BaseModel):
    lease_s: float


class CloseAnswer(BaseModel):
    closed: Literal[True]


class ErrorDetail(BaseModel):
    type: str
    message: str
    retry_after_s: float | None = None


class ErrorAnswer(BaseModel):
    error: ErrorDetail


WHY = {
    400: "the request, the environment's name or its configuration is wrong",
    401: "a bearer token is asked for",
    403: "the token is not for this route, or the request comes from a web page",
    408: "the body came too slowly",
    409: "the step index is neither the next nor the last, or the key made a session of another task",
    410: "the session has ended or never existed",
    413: "the body is too long, or holds too many values",
    415: "the body is neither JSON nor msgpack by its content type",
    429: "a limit on sessions is reached; try again after Retry-After",
    502: "the environment raised (EnvironmentFailure) or its worker process is gone (InfrastructureError)",
    503: "no worker process is ready; try again after Retry-After",
    504: "the environment took longer than its deadline",
}
"""What each error status says."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: these error statuses, and those every route has."""
    always = {400, 401, 403, 408, 413, 415}
    return {s: {"model": ErrorAnswer, "description": WHY[s]} for s in sorted(always | set(statuses))}
