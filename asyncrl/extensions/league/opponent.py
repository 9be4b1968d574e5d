"""Who plays the other side of a group, and how a lease says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from asyncrl.data.fields import Fields
from asyncrl.types import MAIN_POLICY, OPPONENT, Lease

NEWEST = -1
"""As the version of an opponent: whichever is the newest."""


@dataclass(frozen=True, slots=True)
class Opponent:
    """Who plays one side of a group's episodes instead of the policy: one of its past versions, or an exploiter."""

    version: int
    """The version of `policy` that plays; its tokens are never trained. `NEWEST` is an exploiter that is being trained:
    its side is."""
    main: bool
    """Whether it plays the main agent, or the further agents."""
    policy: str = MAIN_POLICY
    """Whose version it is: the main policy's, or an exploiter's."""
    against: int | None = None
    """The past version of the policy that has the other side; None for the newest one, which is trained."""

    @property
    def key(self) -> int | str:
        """By which its games are counted."""
        if self.policy == MAIN_POLICY:
            return self.version
        if self.version != NEWEST:
            return f"{self.policy}/{self.version}"
        return self.policy if self.against is None else f"{self.policy}:{self.against}"


def opponent_extra(opponent: Opponent | None) -> dict[str, Any]:
    """Return the extra that says who plays the other side of a group's episodes; {} where the policy does."""
    if opponent is None:
        return {}
    return {OPPONENT: {name: value for name, value in asdict(opponent).items() if value is not None}}


def opponent_of(lease: Lease) -> Opponent | None:
    """Return who plays the other side of a lease's episodes; None where the policy does. Raises `InputError`."""
    if OPPONENT not in lease.extras:
        return None
    fields = Fields(lease.extras[OPPONENT], f"lease.extras.{OPPONENT}")
    opponent = Opponent(
        version=fields.integer("version", low=NEWEST),
        main=fields.take("main", bool),
        policy=fields.text("policy"),
        against=fields.integer("against", low=0) if fields.has("against") else None,
    )
    fields.close()
    return opponent
