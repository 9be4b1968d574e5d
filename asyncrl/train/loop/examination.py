"""Whether the groups of a batch can be trained: each is prepared for itself, before the batch is.

The buffer has checked every field of a group when it was put. What a step reads beyond that (experts of the model's
shape, what the recipe's advantages need) only the trainer knows. A group that cannot be prepared is its worker's fault:
it would fail the same step again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from asyncrl.data.codec import decode_group, unpack
from asyncrl.data.token_extras.table import recorded
from asyncrl.errors import InputError, StaleError
from asyncrl.extensions.table import rows
from asyncrl.train.models.policy import TrunkInput
from asyncrl.train.step.step_batch import StepBatch, build_step_batch, pad_rows, to_advantage_batch
from asyncrl.types import Group

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Examined:
    """The groups that can be trained, and why each of the others cannot."""

    groups: list[Group] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """The bodies of these groups."""
    unfit: dict[str, str] = field(default_factory=dict)
    """By the id of the lease."""


@dataclass(frozen=True, slots=True)
class Examiner:
    """Prepares single groups as a step does.

    needs: words of `algo.needs.KNOWN` that the recipe needs. max_staleness: of the oldest token that a step trains.
    inputs: what the model's layers read besides the tokens; what engines record for models and none reads is refused.
    """

    needs: Collection[str]
    max_staleness: int
    inputs: Sequence[TrunkInput] = ()

    def examine(
        self, bodies: Sequence[bytes], step: int, arrived: Mapping[bytes, Group] | None = None
    ) -> Examined:
        """Decode and prepare each of the encoded groups. arrived: groups by their encoded form that were examined.

        Raises `StaleError` for a token that the step may not train.
        """
        found = Examined()
        for body in bodies:
            group = (arrived or {}).get(body)
            try:
                if group is None:
                    group = decode_group(body)
                    self.prepare(group, step)
            except StaleError:
                # The buffer gives no such group: that is no worker's fault.
                raise
            except Exception as error:
                lease = _lease_of(body) if group is None else group.id
                found.unfit[lease] = f"{type(error).__name__}: {str(error)[:500]}"
                log.warning("group %s cannot be trained", lease, exc_info=error)
            else:
                found.groups.append(group)
                found.bodies.append(body)
        return found

    def prepare(self, group: Group, step: int) -> None:
        """Make of the group what a step makes of its batch. Raises whatever that raises."""
        batch = build_step_batch([group], step, self.max_staleness)
        for t in batch.trajectories:
            for one in self.inputs:
                one.check(t)
            if unread := recorded(t.extras) - {one.kind for one in self.inputs}:
                raise InputError(f"episode {t.episode_index} has {min(unread)}, and this run records none")
        for row in rows("group_checks"):
            if row.wanted({"needs": frozenset(self.needs)}):
                row.load()(batch)
        self._read(batch)

    def _read(self, batch: StepBatch) -> None:
        """Read all that a step reads of its rows without a model."""
        if batch.num_rows:
            to_advantage_batch(batch)
            pad_rows(batch, [max(range(batch.num_rows), key=lambda row: batch.lengths[row])])


def _lease_of(body: bytes) -> str:
    """Return the id of a group that cannot be decoded whole. Raises `InputError` where it cannot be read at all."""
    raw = unpack(body)
    if not isinstance(raw, dict) or not isinstance(raw.get("id"), str):
        raise InputError("the buffer gave a group without an id")
    return str(raw["id"])


def refusal(unfit: Mapping[str, str], step: int) -> str:
    """Say why groups are rejected."""
    group, why = next(iter(unfit.items()))
    return f"{len(unfit)} groups cannot be trained (step {step}): that of lease {group}: {why}"
