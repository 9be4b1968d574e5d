"""The weights that members train together, fragment by fragment, and who the members are. On disk, without HTTP.

    FOLDER/outer.json                        the terms, and the members
    FOLDER/fragment-000/                     a fragment's rounds and what has come for the next ones: see `fragment`

Members that do not contribute within `wait_timeout_s` are lost: nobody waits for them until they are heard from again.
A contribution has its run and the run's version: the same steps never count twice.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from asyncrl.errors import ConfigError, ConflictError, InputError
from asyncrl.extensions.outer.fragment import (
    ACTIVE,
    GLOBAL,
    LEFT,
    LOST,
    REPLACED,
    UPDATE,
    Fragment,
    write,
)
from asyncrl.extensions.outer.mean import MeanFragment
from asyncrl.extensions.outer.messages import FromMember, Join, Look, Part, Put, Read, Terms
from asyncrl.extensions.outer.pairs import PairFragment
from asyncrl.extensions.outer.tensors import WHOLE_BITS, body_bytes, decode
from asyncrl.file_lock import own
from asyncrl.jsonfile import read_json
from asyncrl.weights.chunks import file_checksum

log = logging.getLogger("asyncrl.outer")

FOUNDER_S = 60.0
"""After this silence of the member that was to send the weights to begin with, another one does."""
STATE, LOCK = "outer.json", "lock"
KINDS = {"whole": GLOBAL, "update": UPDATE}
METHODS: dict[str, type[Fragment]] = {"mean": MeanFragment, "gossip": PairFragment}


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
        self._locked = own(folder / LOCK, f"--state {folder}: another service is using it")
        shutil.rmtree(folder / "partial", ignore_errors=True)
        if kept is not None:
            self.members = kept["members"]
            self._use(Terms.model_validate(kept["terms"]))

    def close(self) -> None:
        """Let another service use the folder."""
        os.close(self._locked)

    def join(self, message: Join) -> dict[str, Any]:
        """Take a run in as a member; return the rounds of the fragments, -1 for those without weights, and whether it
        is to send its own to begin with.

        A run replaces an earlier one with its number. Raises `ConfigError` for other terms than the first member's.
        """
        with self._lock:
            self._check_terms(message)
            if self.terms is None:
                self._use(message.terms)
            replaced = [
                run
                for run, other in self.members.items()
                if run != message.run and other["member"] == message.member and other["state"] != REPLACED
            ]
            for run in replaced:
                other = self.members[run]
                other["state"] = REPLACED
                other["by"] = message.name
                log.warning(
                    "%s takes the place of %s as member %d", message.name, other["name"], message.member
                )
            self.members[message.run] = {"member": message.member, "name": message.name, "state": ACTIVE}
            self._keep()
            start = self._is_founder(message.run)
            found = [one.of(message.run) for one in self.fragments]
            for run in replaced:
                for fragment in self.fragments:
                    fragment.forget(run)
            self._close_if_complete()
            return {"start": start, "rounds": [-1 if one is None else one.round for one in found]}

    def part(self, message: Part) -> int:
        """Take bytes of a body; return how many of it are there: the caller goes on at that place."""
        with self._lock:
            fragment = self._fragment(message)
            path = self._partial(message.run, message.fragment, message.version)
            path.parent.mkdir(exist_ok=True)
            received = path.stat().st_size if path.exists() else 0
            if message.offset == received:
                if received + len(message.data) > body_bytes(fragment.shapes, WHOLE_BITS):
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
                fragment.begin(
                    message.run, decode(self._whole(partial, message), fragment.shapes, WHOLE_BITS)
                )
                number = fragment.round
            elif message.version <= fragment.counted(message.run):
                partial.unlink(missing_ok=True)
                kept = fragment.of(message.run)
                return {"round": -1 if kept is None else kept.round, "repeated": True}
            elif (earlier := fragment.open.get(message.run)) is None or message.version > earlier.version:
                # A later one has the same base, and so the steps of an earlier one, too.
                number = fragment.accept(message.run, message.version, self._whole(partial, message))
            else:
                partial.unlink(missing_ok=True)
                return {"round": fragment.round_for(message.run), "repeated": True}
            partial.unlink(missing_ok=True)
            self._close_if_complete()
            return {"round": number, "repeated": False}

    def look(self, message: Look) -> dict[str, Any] | None:
        """Return what there is to read of a fragment once it has reached the round that is asked for."""
        with self._lock:
            fragment = self._fragment(message)
            kept = fragment.of(message.run)
            if kept is None or kept.round < message.wanted:
                return None
            update = message.have == kept.before and (kept.folder / UPDATE).exists()
            kind = "update" if update else "whole"
            file = kept.folder / KINDS[kind]
            return {
                "round": kept.round,
                "kind": kind,
                "size": file.stat().st_size,
                "checksum": file_checksum(file),
                "members": kept.contributors,
            }

    def read(self, message: Read) -> bytes:
        """Return a part of it. Raises `ConflictError` when the round is gone: there is a newer one."""
        fragment = self._fragment(message)
        try:
            with open(fragment.at(message.run, message.round) / KINDS[message.kind], "rb") as file:
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
                for of, run in fragment.close_overdue():
                    self.members[run]["state"] = LOST
                    log.warning(
                        "fragment %d, round %d: %s has not contributed within %g s and is not waited for any more",
                        number, of, self.members[run]["name"], self.terms.wait_timeout_s,
                    )  # fmt: skip
                    self._keep()
            self._close_if_complete()

    def status(self) -> dict[str, Any]:
        """Return the rounds of the fragments and the members."""
        with self._lock:
            return {
                "rounds": [one.round for one in self.fragments],
                "waiting_for": [
                    sorted(self.members[run]["name"] for run in one.awaited()) if one.open else []
                    for one in self.fragments
                ],
                "members": [
                    {"counted": [max(0, one.counted(run)) for one in self.fragments], **member}
                    for run, member in self.members.items()
                ],
            }

    def _use(self, terms: Terms) -> None:
        self.terms = terms
        self.fragments = [
            METHODS[terms.method](
                number, self.folder / f"fragment-{number:03d}", terms, self.members, self.clock
            )
            for number in range(len(terms.fragments))
        ]

    def _check_terms(self, message: Join) -> None:
        """Raise `ConfigError` where a member cannot take part under the terms that hold, or under its own as the first
        one: terms of a member that is refused must not bind others."""
        terms = self.terms or message.terms
        for key, agreed in terms.model_dump().items():
            given = message.terms.model_dump()[key]
            if given == agreed:
                continue
            if key == "fragments":
                raise ConfigError(
                    "outer.fragments: the other members exchange other parameters, or divide them otherwise; all must "
                    "train the same model in the same number of fragments"
                )
            raise ConfigError(f"outer.{key}: the other members have {agreed}, got {given}")
        if message.member >= terms.members:
            raise ConfigError(f"outer.member: must be below {terms.members}, got {message.member}")

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

    def _partial(self, run: str, fragment: int, version: int) -> Path:
        return self.folder / "partial" / f"{run}-{fragment}-{version}"

    def _whole(self, partial: Path, message: Put) -> bytes:
        """Return a body that has come whole."""
        body = partial.read_bytes() if partial.exists() else b""
        if len(body) != message.size or xxhash.xxh3_128_hexdigest(body) != message.checksum:
            partial.unlink(missing_ok=True)
            raise InputError(f"fragment {message.fragment}: the body came damaged; send it again")
        return body

    def _close_if_complete(self) -> None:
        for fragment in self.fragments:
            fragment.close_if_complete()

    def _keep(self) -> None:
        assert self.terms is not None
        kept = {"terms": self.terms.model_dump(mode="json"), "members": self.members}
        write(self.folder / STATE, json.dumps(kept, indent=1).encode())
