"""The global weights that members train together, their rounds, and the outer optimizer. On disk, without HTTP.

    FOLDER/outer.json                        the terms, and the members
    FOLDER/fragment-000/round-000004/        a fragment after its fourth outer step, complete or absent:
        global.safetensors                       float32 weights by parameter name
        momentum.safetensors                     the outer optimizer's, and what rounding has left
        update.safetensors                       the step from the round before, as it is sent, in fewer than 32 bits
        round.json                               which steps of which runs are in it
    FOLDER/fragment-000/contributions/       what has been acknowledged for the next round

A fragment's round closes when all members that were there when it began have contributed, or `wait_timeout_s` after the
first did. Those that are missing are lost then: no later round waits for them until they are heard from again. The mean
is over those that contributed. A contribution has its run and the run's version: the same steps never count twice.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from asyncrl.algo.outer.mean_gradient import mean_gradient
from asyncrl.algo.outer.nesterov import nesterov_step
from asyncrl.disk import sync
from asyncrl.errors import ConfigError, ConflictError, InputError
from asyncrl.jsonfile import read_json
from asyncrl.services.outer.messages import FromMember, Join, Look, Part, Put, Read, Terms
from asyncrl.weights.chunks import file_checksum
from asyncrl.weights.outer_tensors import WHOLE_BITS, body_bytes, decode, encode

log = logging.getLogger("asyncrl.outer")

FOUNDER_S = 60.0
"""After this silence of the member that was to send the weights to begin with, another one does."""
KEPT_ROUNDS = 2
"""Of a fragment: the newest, and the one before while it is still being read."""
GLOBAL, MOMENTUM, UPDATE = "global.safetensors", "momentum.safetensors", "update.safetensors"
ROUND, STATE, LOCK = "round.json", "outer.json", "lock"
KINDS = {"whole": GLOBAL, "update": UPDATE}
ACTIVE, LOST, LEFT, REPLACED = "active", "lost", "left", "replaced"
RESIDUAL = "residual/"
BUFFER = "momentum/"


@dataclass
class Fragment:
    """One fragment's newest round, and what has come for the next one."""

    folder: Path
    round: int = -1
    """-1 before there are weights."""
    counted: dict[str, int] = field(default_factory=dict)
    """The version of each run up to which its steps are in the weights."""
    contributors: int = 0
    open: dict[str, tuple[int, Path]] = field(default_factory=dict)
    """Version and body of each contribution to the next round, by run."""
    expected: set[str] = field(default_factory=set)
    opened_at: float = 0.0

    def path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}"


class Rounds:
    """The folder's state. For any thread. Raises `ConfigError` for a folder that holds something else."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.clock = clock
        self.terms: Terms | None = None
        self.members: dict[str, dict[str, Any]] = {}
        self.fragments: list[Fragment] = []
        self._founder, self._founder_heard = "", 0.0
        self._lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        kept = read_json(folder / STATE)
        if kept is None and any(path.name != LOCK for path in folder.iterdir()):
            raise ConfigError(f"--state {folder}: holds files, and no {STATE}; name a new folder")
        self._locked = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._locked)
            raise ConfigError(f"--state {folder}: another service is using it") from None
        shutil.rmtree(folder / "partial", ignore_errors=True)
        if kept is not None:
            self._use(Terms.model_validate(kept["terms"]))
            self.members = kept["members"]
            for fragment in self.fragments:
                self._recover(fragment)

    def close(self) -> None:
        """Let another service use the folder."""
        os.close(self._locked)

    def join(self, message: Join) -> dict[str, Any]:
        """Take a run in as a member; return the rounds of the fragments, -1 for those without weights, and whether it
        is to send its own to begin with.

        A run replaces an earlier one with its number. Raises `ConfigError` for other terms than the first member's.
        """
        with self._lock:
            if self.terms is None:
                self._use(message.terms)
            self._check_terms(message)
            for run, other in self.members.items():
                if run != message.run and other["member"] == message.member and other["state"] != REPLACED:
                    other["state"] = REPLACED
                    other["by"] = message.name
                    log.warning(
                        "%s takes the place of %s as member %d", message.name, other["name"], message.member
                    )
            self.members[message.run] = {"member": message.member, "name": message.name, "state": ACTIVE}
            self._keep()
            self._close_if_complete()
            return {"start": self._is_founder(message.run), "rounds": [one.round for one in self.fragments]}

    def part(self, message: Part) -> int:
        """Take bytes of a body; return how many of it are there: the caller goes on at that place."""
        with self._lock:
            fragment = self._fragment(message)
            path = self._partial(message.run, message.fragment, message.version)
            path.parent.mkdir(exist_ok=True)
            received = path.stat().st_size if path.exists() else 0
            if message.offset == received:
                if received + len(message.data) > body_bytes(self._shapes(fragment), WHOLE_BITS):
                    raise InputError(f"fragment {message.fragment}: the body is larger than its weights")
                with open(path, "ab") as file:
                    file.write(message.data)
                received += len(message.data)
            return received

    def put(self, message: Put) -> dict[str, Any]:
        """Count a contribution, or take weights to begin with; return the round that will have it, and whether its
        steps had been counted before, or another run's weights are those to begin with. Raises `InputError` for a body
        that is damaged or has other parameters."""
        with self._lock:
            fragment = self._fragment(message)
            partial = self._partial(message.run, message.fragment, message.version)
            if message.start:
                if fragment.round >= 0 or message.run != self._founder:
                    return {"round": fragment.round, "repeated": message.run != self._founder}
                weights = decode(self._whole(partial, message), self._shapes(fragment), WHOLE_BITS)
                self._write_round(fragment, weights, {}, None, {}, 0)
            elif message.version <= fragment.counted.get(message.run, -1):
                partial.unlink(missing_ok=True)
                return {"round": fragment.round, "repeated": True}
            elif message.version > fragment.open.get(message.run, (-1,))[0]:
                # A later one has the same base, and so the steps of an earlier one, too.
                self._accept(fragment, message, self._whole(partial, message))
            else:
                partial.unlink(missing_ok=True)
                return {"round": fragment.round + 1, "repeated": True}
            partial.unlink(missing_ok=True)
            of = fragment.round + (0 if message.start else 1)
            self._close_if_complete()
            return {"round": of, "repeated": False}

    def look(self, message: Look) -> dict[str, Any] | None:
        """Return what there is to read of a fragment once it has reached the round that is asked for."""
        with self._lock:
            fragment = self._fragment(message)
            if fragment.round < message.wanted:
                return None
            path, kind = fragment.path(fragment.round), "whole"
            if message.have == fragment.round - 1 and (path / UPDATE).exists():
                kind = "update"
            file = path / KINDS[kind]
            return {
                "round": fragment.round,
                "kind": kind,
                "size": file.stat().st_size,
                "checksum": file_checksum(file),
                "members": fragment.contributors,
            }

    def read(self, message: Read) -> bytes:
        """Return a part of it. Raises `ConflictError` when the round is gone: there is a newer one."""
        fragment = self._fragment(message)
        try:
            with open(fragment.path(message.round) / KINDS[message.kind], "rb") as file:
                file.seek(message.offset)
                return file.read(message.size)
        except FileNotFoundError:
            raise ConflictError(f"fragment {message.fragment}: round {message.round} is gone") from None

    def leave(self, message: FromMember) -> None:
        """Wait for a run no longer. What it has contributed counts."""
        with self._lock:
            if message.run in self.members:
                if self.members[message.run]["state"] != REPLACED:
                    self.members[message.run]["state"] = LEFT
                self._keep()
                self._close_if_complete()

    def close_overdue(self) -> None:
        """Close rounds that have waited long enough, without those that are missing."""
        with self._lock:
            for number, fragment in enumerate(self.fragments):
                assert self.terms is not None
                if not fragment.open or self.clock() < fragment.opened_at + self.terms.wait_timeout_s:
                    continue
                for run in self._awaited(fragment):
                    self.members[run]["state"] = LOST
                    log.warning(
                        "fragment %d, round %d: %s has not contributed within %g s and is not waited for any more",
                        number, fragment.round + 1, self.members[run]["name"], self.terms.wait_timeout_s,
                    )  # fmt: skip
                self._keep()
                self._close(fragment)
            self._close_if_complete()

    def status(self) -> dict[str, Any]:
        """Return the rounds of the fragments and the members."""
        with self._lock:
            return {
                "rounds": [one.round for one in self.fragments],
                "waiting_for": [
                    sorted(self.members[run]["name"] for run in self._awaited(one)) if one.open else []
                    for one in self.fragments
                ],
                "members": [
                    {"counted": [one.counted.get(run, 0) for one in self.fragments], **member}
                    for run, member in self.members.items()
                ],
            }

    def _use(self, terms: Terms) -> None:
        self.terms = terms
        self.fragments = [
            Fragment(self.folder / f"fragment-{number:03d}") for number in range(len(terms.fragments))
        ]
        for fragment in self.fragments:
            (fragment.folder / "contributions").mkdir(parents=True, exist_ok=True)

    def _check_terms(self, message: Join) -> None:
        assert self.terms is not None
        for key, agreed in self.terms.model_dump().items():
            given = message.terms.model_dump()[key]
            if given == agreed:
                continue
            if key == "fragments":
                raise ConfigError(
                    "outer.fragments: the other members exchange other parameters, or divide them otherwise; all must "
                    "train the same model in the same number of fragments"
                )
            raise ConfigError(f"outer.{key}: the other members have {agreed}, got {given}")
        if message.member >= self.terms.members:
            raise ConfigError(f"outer.member: must be below {self.terms.members}, got {message.member}")

    def _is_founder(self, run: str) -> bool:
        """True when this run's weights are those to begin with."""
        if all(one.round >= 0 for one in self.fragments):
            return False
        if self._founder not in ("", run) and self.clock() < self._founder_heard + FOUNDER_S:
            return False
        if self._founder != run:
            # What an earlier one has sent of its weights does not go with these.
            for one in self.fragments:
                shutil.rmtree(one.folder)
            assert self.terms is not None
            self._use(self.terms)
        self._founder, self._founder_heard = run, self.clock()
        return True

    def _fragment(self, message: Part | Put | Look | Read) -> Fragment:
        """Return the fragment a message is about, of a member, which is active again if it was lost."""
        member = self.members.get(message.run)
        if member is None:
            raise ConflictError("this run has not joined")
        if member["state"] == REPLACED:
            raise ConflictError(
                f"{member['by']} has taken the place of this run as member {member['member']}"
            )
        if message.fragment >= len(self.fragments):
            raise InputError(f"fragment: must be below {len(self.fragments)}, got {message.fragment}")
        member["state"] = ACTIVE
        if message.run == self._founder:
            self._founder_heard = self.clock()
        return self.fragments[message.fragment]

    def _shapes(self, fragment: Fragment) -> dict[str, tuple[int, ...]]:
        assert self.terms is not None
        shapes = self.terms.fragments[self.fragments.index(fragment)]
        return {name: tuple(shape) for name, shape in shapes.items()}

    def _partial(self, run: str, fragment: int, version: int) -> Path:
        return self.folder / "partial" / f"{run}-{fragment}-{version}"

    def _whole(self, partial: Path, message: Put) -> bytes:
        """Return a body that has come whole."""
        body = partial.read_bytes() if partial.exists() else b""
        if len(body) != message.size or xxhash.xxh3_128_hexdigest(body) != message.checksum:
            partial.unlink(missing_ok=True)
            raise InputError(f"fragment {message.fragment}: the body came damaged; send it again")
        return body

    def _accept(self, fragment: Fragment, message: Put, body: bytes) -> None:
        assert self.terms is not None
        if fragment.round < 0:
            raise ConflictError(f"fragment {message.fragment}: there are no weights to begin with yet")
        decode(body, self._shapes(fragment), self.terms.bits)
        path = fragment.folder / "contributions" / f"{message.run}@{message.version}"
        _write(path, body)
        if not fragment.open:
            self._open(fragment)
        if earlier := fragment.open.get(message.run):
            earlier[1].unlink(missing_ok=True)
        fragment.open[message.run] = (message.version, path)

    def _open(self, fragment: Fragment) -> None:
        fragment.opened_at = self.clock()
        fragment.expected = {run for run, member in self.members.items() if member["state"] == ACTIVE}

    def _awaited(self, fragment: Fragment) -> list[str]:
        """Return the members without which the round does not close before its time."""
        return [
            run
            for run in fragment.expected
            if run not in fragment.open and self.members[run]["state"] == ACTIVE
        ]

    def _close_if_complete(self) -> None:
        for fragment in self.fragments:
            if fragment.open and not self._awaited(fragment):
                self._close(fragment)

    def _close(self, fragment: Fragment) -> None:
        """Take the outer step of a round on the mean of what was contributed."""
        assert self.terms is not None
        terms, shapes, path = self.terms, self._shapes(fragment), fragment.path(fragment.round)
        contributed = {run: (version, file) for run, (version, file) in fragment.open.items()}
        mean = mean_gradient([decode(f.read_bytes(), shapes, terms.bits) for _, f in contributed.values()])
        weights = decode((path / GLOBAL).read_bytes(), shapes, WHOLE_BITS)
        kept = _momentum(path, shapes, (BUFFER,) if terms.bits == WHOLE_BITS else (BUFFER, RESIDUAL))
        updates: dict[str, np.ndarray] = {}
        for name, gradient in mean.items():
            updates[name], kept[BUFFER + name] = nesterov_step(
                gradient, kept[BUFFER + name], terms.learning_rate, terms.momentum
            )
        body = None
        if terms.bits != WHOLE_BITS:
            wanted = {name: one + kept[RESIDUAL + name] for name, one in updates.items()}
            body, updates = encode(wanted, terms.bits)
            kept |= {RESIDUAL + name: wanted[name] - updates[name] for name in wanted}
        weights = {name: weights[name] - updates[name] for name in weights}
        counted = fragment.counted | {run: version for run, (version, _) in contributed.items()}
        self._write_round(fragment, weights, kept, body, counted, len(contributed))
        for _, file in contributed.values():
            file.unlink(missing_ok=True)
        fragment.open, fragment.expected = {}, set()

    def _write_round(
        self,
        fragment: Fragment,
        weights: dict[str, np.ndarray],
        momentum: dict[str, np.ndarray],
        update: bytes | None,
        counted: dict[str, int],
        contributors: int,
    ) -> None:
        """Have the next round on disk, whole or not at all."""
        number = fragment.round + 1
        target = fragment.path(number)
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(partial / GLOBAL, encode(weights, WHOLE_BITS)[0])
        if momentum:
            _write(partial / MOMENTUM, encode(momentum, WHOLE_BITS)[0])
        if update is not None:
            _write(partial / UPDATE, update)
        _write(partial / ROUND, json.dumps({"counted": counted, "contributors": contributors}).encode())
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        sync(fragment.folder)
        fragment.round, fragment.counted, fragment.contributors = number, counted, contributors
        for old in sorted(fragment.folder.glob("round-*"))[:-KEPT_ROUNDS]:
            shutil.rmtree(old, ignore_errors=True)

    def _recover(self, fragment: Fragment) -> None:
        """Find the newest round, and the contributions that are not in it."""
        for left in fragment.folder.glob("*.partial"):
            shutil.rmtree(left, ignore_errors=True)
        found = sorted(fragment.folder.glob("round-*"))
        if not found:
            return
        fragment.round = int(found[-1].name.removeprefix("round-"))
        kept = read_json(found[-1] / ROUND) or {}
        fragment.counted, fragment.contributors = kept["counted"], kept["contributors"]
        for path in (fragment.folder / "contributions").iterdir():
            run, _, version = path.name.partition("@")
            if version.isdigit() and int(version) > fragment.counted.get(run, -1):
                fragment.open[run] = (int(version), path)
            else:
                path.unlink()
        if fragment.open:
            self._open(fragment)

    def _keep(self) -> None:
        assert self.terms is not None
        kept = {"terms": self.terms.model_dump(mode="json"), "members": self.members}
        _write(self.folder / STATE, json.dumps(kept, indent=1).encode())


def _momentum(path: Path, shapes: dict[str, tuple[int, ...]], kinds: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the outer optimizer's state after a round; zeros before the first step."""
    named = {kind + name: shape for kind in kinds for name, shape in shapes.items()}
    file = path / MOMENTUM
    if file.exists():
        return decode(file.read_bytes(), named, WHOLE_BITS)
    return {name: np.zeros(shape, np.float32) for name, shape in named.items()}


def _write(path: Path, data: bytes) -> None:
    """Write a file that survives the machine, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
