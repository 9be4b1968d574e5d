"""Groups that other runs share, on the first rank; see `asyncrl.extensions.swarm.curation`.

A thread publishes a share of what has been trained and fetches what others have published, while the service answers.
A step takes what is there and waits for nothing. As the groups to replay, the pool is part of the checkpoint and the
buffer knows nothing of it: a trainer that resumes forgets the later steps together with what they took from the pool,
so in the history that remains each external group is trained at most once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash

from asyncrl.data.codec import decode_group, encode_group, pack, unpack
from asyncrl.errors import AsyncRLError, InputError
from asyncrl.extensions.swarm.curation import (
    MAX_GROUP_BYTES,
    Offered,
    Terms,
    adopted,
    component_names,
    drawn,
    published,
    refusal,
)
from asyncrl.extensions.swarm.protocol import Arrived, SwarmService
from asyncrl.train.loop.callbacks import StepGroups, TrainerCallback
from asyncrl.train.step.step_batch import FurtherGroups, StepBatch
from asyncrl.types import Group

log = logging.getLogger("asyncrl.train")

FETCH_S = 1.0
"""Between two looks."""
KEPT = 4
"""Times as many groups are kept ready as a step draws."""
MAX_WAITING = 64
"""Own groups that wait to be published; the oldest are given up."""
MAX_KNOWN = 2**16
"""Groups that are known to have come before."""
_HINTS = {
    "undecodable": "they cannot be read; all runs need one version of asyncrl",
    "task": "they are of another environment than env.name",
    "size": "they have more episodes or longer ones than engine.max_model_len allows",
    "tokens": "their tokens are not of this model",
    "reward": "a reward is beyond swarm.max_reward",
    "components": "their rewards have other components",
}
"""What a person should know of a reason to refuse groups."""
RECORD = "swarm.jsonl"
"""File of a run's folder: the external groups of each step. Of two lines for one step the later holds."""


@dataclass(frozen=True, slots=True)
class Quota:
    """How much is shared; see `SwarmConfig`."""

    groups: int
    share: float
    max_age: int
    seed: int


class SwarmPool:
    """The external groups of a run that may be trained, and its own on their way to others."""

    def __init__(self, quota: Quota, terms: Terms, service: SwarmService, record: Path | None = None) -> None:
        self.quota, self.terms, self.service = quota, terms, service
        self.record = record
        self.counts: Counter[str] = Counter()
        """Since the process started: published, too_large, fetched, refused_REASON."""
        self.version = 0
        """The run's newest."""
        self.reachable = True
        self.groups: dict[str, Group] = {}
        """By name, in the order in which they came."""
        self._known: dict[bytes, None] = {}
        """Digests of the tokens of all groups that have come, oldest first."""
        self._store, self._last = "", 0
        self._waiting: list[bytes] = []
        self._drawn: tuple[int, list[Group]] = (-1, [])
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, version: int) -> None:
        """Begin to publish and fetch, for a run that is at `version`."""
        self.version = version
        self._thread = threading.Thread(target=self._run, name="swarm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; what waits is published once more if the service answers."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(60)
        self.service.close()

    def draw(self, step: int, own: Sequence[Group]) -> list[Group]:
        """Return the external groups that `step` trains beside its own; the same ones whenever it is asked for the
        same step. Rewards of other components than the own ones are not trained."""
        with self._lock:
            if self._drawn[0] != step:
                self._forget_old(step)
                self._refuse_others(component_names(own))
                offered = [Offered(g.id, _peer(g), g.version) for g in self.groups.values()]
                names = drawn(offered, step, self.quota.groups, self.quota.max_age, self.quota.seed)
                self._drawn = step, [self.groups.pop(name) for name in names]
            return self._drawn[1]

    def trained(self, own: Sequence[Group], step: int, without: Collection[str] = ()) -> None:
        """Take note of a step that is committed: share of its own groups, but those `without`, and go on."""
        chosen = published(
            [g for g in own if g.id not in without],
            step,
            self.quota.share,
            self.quota.seed,
            self.terms.inputs,
        )
        bodies = [encode_group(group) for group in chosen]
        fitting = [body for body in bodies if len(body) <= MAX_GROUP_BYTES]
        with self._lock:
            self.version = step + 1
            self.counts["too_large"] += len(bodies) - len(fitting)
            self._waiting = [*self._waiting, *fitting][-MAX_WAITING:]
        if self.record is not None:
            names = [g.id for g in self._drawn[1] if g.id not in without] if self._drawn[0] == step else []
            with contextlib.suppress(OSError), open(self.record, "a") as file:
                file.write(json.dumps({"step": step + 1, "external": names}) + "\n")

    def exchange(self) -> None:
        """Publish what waits and fetch what there is room for. Raises `AsyncRLError`."""
        with self._lock:
            waiting = list(self._waiting)
            room = KEPT * self.quota.groups - len(self.groups)
        if waiting:
            stored = self.service.publish(waiting)
            with self._lock:
                self.counts["published"] += stored
                sent = set(waiting)
                self._waiting = [body for body in self._waiting if body not in sent]
        if room > 0:
            found = self.service.fetch(self._store, self._last, room)
            for one in reversed(found.groups):
                self._take_in(one)
            with self._lock:
                self._store, self._last = found.store, found.last

    def metrics(self, step: int) -> dict[str, float]:
        """Return what the metrics file holds after a step."""
        with self._lock:
            mixed = self._drawn[1] if self._drawn[0] == step else []
            tokens = sum(t.num_sampled for g in mixed for t in g.trajectories)
            counts = {f"swarm/{name}": float(n) for name, n in sorted(self.counts.items())}
            return counts | {
                "swarm/mixed": float(len(mixed)),
                "swarm/mixed_tokens": float(tokens),
                "swarm/ready": float(len(self.groups)),
                "swarm/unreachable": float(not self.reachable),
            }

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: groups in their wire form, what has come before, how far it has read."""
        with self._lock:
            # Where a group is from is no part of its wire form.
            groups = pack([[_peer(group), encode_group(group)] for group in self.groups.values()])
            return {
                "groups": _bytes(groups),
                "known": _bytes(b"".join(self._known)),
                "store": self._store,
                "last": self._last,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        kept = unpack(state["groups"].numpy().tobytes())
        found = [_of_peer(decode_group(body), peer) for peer, body in kept]
        known = state["known"].numpy().tobytes()
        with self._lock:
            self.groups = {group.id: group for group in found}
            self._known = dict.fromkeys(known[i : i + 16] for i in range(0, len(known), 16))
            self._store, self._last = state["store"], state["last"]
            self._drawn = -1, []

    def _take_in(self, one: Arrived) -> None:
        """Keep a group that others have published, or count why not."""
        why, group, digest = self._checked(one)
        with self._lock:
            self.counts["fetched"] += 1
            if not why and digest in self._known:
                why = "repeated"
            if why or group is None:
                self._refused(why, one.name)
                return
            self._known[digest] = None
            while len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
            name = f"swarm/{digest.hex()}"
            self.groups[name] = adopted(group, name, one.run, self.version)

    def _checked(self, one: Arrived) -> tuple[str, Group | None, bytes]:
        try:
            group = decode_group(one.body)
        except InputError:
            return "undecodable", None, b""
        why = refusal(group, self.terms)
        return why, group, b"" if why else content_digest(group)

    def _refused(self, why: str, peer: str, count: int = 1) -> None:
        """Count refused groups, and say the first time what it means. With the lock held."""
        if why in _HINTS and not self.counts[f"refused_{why}"]:
            log.warning("groups of %r in the swarm are not trained: %s", peer, _HINTS[why])
        self.counts[f"refused_{why}"] += count

    def _refuse_others(self, components: frozenset[str]) -> None:
        """Forget groups whose rewards have other components. With the lock held."""
        for name, group in list(self.groups.items()):
            if component_names([group]) != components:
                del self.groups[name]
                self._refused("components", _peer(group))

    def _forget_old(self, step: int) -> None:
        old = [name for name, g in self.groups.items() if step - g.version > self.quota.max_age]
        for name in old:
            del self.groups[name]
        if old:
            self._refused("age", "", len(old))

    def _run(self) -> None:
        """Exchange until the run ends."""
        while True:
            last = self._ended.is_set()
            self.attempt()
            if last:
                return
            self._ended.wait(FETCH_S)

    def attempt(self) -> None:
        """Exchange, and say when the service is away and when it is back."""
        try:
            self.exchange()
        except Exception as error:
            if self.reachable:
                if not isinstance(error, AsyncRLError | TimeoutError):
                    log.exception("exchange with the swarm")
                log.warning("the swarm gives no usable answer; training goes on with own groups: %s", error)
            self.reachable = False
        else:
            if not self.reachable:
                log.warning("the swarm answers again")
            self.reachable = True


def content_digest(group: Group) -> bytes:
    """Return the hash (16 bytes) of what a group would train: a copy under another name is the same group."""
    hashed = xxhash.xxh3_128()
    for t in sorted(group.usable, key=lambda t: t.token_ids.tobytes()):
        hashed.update(len(t.token_ids).to_bytes(8, "little"))
        for array in (t.token_ids, t.loss_mask):
            hashed.update(array.tobytes())
    return hashed.digest()


def _peer(group: Group) -> str:
    return group.trajectories[0].peer


def _of_peer(group: Group, peer: str) -> Group:
    return replace(group, trajectories=tuple(replace(t, peer=peer) for t in group.trajectories))


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


class Swarm(TrainerCallback):
    """Trains groups that other runs share beside the own ones, on the first rank."""

    name = "swarm"
    survives_going_back = True  # What other runs have in common with this one has not gone back.

    def __init__(self, pool: SwarmPool) -> None:
        self.pool = pool

    def start(self, version: int) -> None:
        self.pool.start(version)

    def groups(self, version: int, groups: StepGroups) -> None:
        drawn = self.pool.draw(version, groups.own)
        groups.further.append(FurtherGroups("external", drawn, self.pool.quota.max_age))

    def trained(
        self, batch: StepBatch, groups: Sequence[Group], poisoned: Collection[str], went_back: bool
    ) -> None:
        # What made the policy worse is not shown to others.
        self.pool.trained(() if went_back else groups, batch.step, poisoned)

    def metrics(self, step: int) -> Mapping[str, Any]:
        return self.pool.metrics(step)

    def state_dict(self) -> dict[str, Any]:
        return self.pool.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool.load_state_dict(state)

    def close(self) -> None:
        self.pool.close()
