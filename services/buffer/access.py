"""Which roles may call what of the buffer; the launcher may call everything."""

from __future__ import annotations

from asyncrl.services.buffer.hook_routes import HOOK_ROLES
from asyncrl.services.http.app import ALL_ROLES

TRAINER = (
    *("take", "peek", "drop", "reject", "fail_taken", "commit", "rollback", "replan"),
    *("staleness_limit", "pause", "quarantine"),
)
WORKER = ("lease", "renew", "release", "fail", "put", "put_many", "reserve", "put_files", "reclaim")
CALLS = {
    **{f"/v1/{name}": {"trainer"} for name in TRAINER},
    "GET /v1/bodies": {"trainer", "worker"},
    **{f"/v1/{name}": {"worker"} for name in WORKER},
    **{f"/v1/{name}": {"engine", "env"} for name in ("join", "leave")},
    "/v1/enroll": {"guest"},
    **dict.fromkeys(("GET /v1/job", "/v1/status", "/metrics"), ALL_ROLES),
}
"""The calls of every run."""
FURTHER: tuple[dict[str, set[str]], ...] = (HOOK_ROLES, {"/v1/peek": {"old_policy"}})
"""What optional features add: calls of their own, and roles that may make the others."""


def _allowed() -> dict[str, set[str]]:
    found = {call: set(roles) for call, roles in CALLS.items()}
    for one in FURTHER:
        for call, roles in one.items():
            found[call] = found.get(call, set()) | roles
    return found


ROLES = _allowed()
