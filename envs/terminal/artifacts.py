"""What of the agent's session comes into the session of tests that have one of their own.

A path of the agent's work folder, or `ARTIFACTS`, which is the folder `KEPT` of the work folder here: a session writes
nowhere else. What an agent left is not to be trusted: as harbor does, links that lead out of an artifact, special files
and the rights of other users do not come over.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.agent_time import own
from asyncrl.sandbox.protocol import MIB, WORKDIR, ExecResult, Sandbox

ARTIFACTS = "/logs/artifacts"
"""Where harbor's agents leave what no entry has to name."""
KEPT = ".artifacts"
KEEPER = f"{KEPT}/.keep"
MAIN = "main"
"""The name of the agent's own container."""
HOOK_S, COPY_S = 60.0, 60.0
MOST_BYTES = 256 * MIB
"""Of all artifacts together."""
NOWHERE = "/artifact"
"""Links are judged as if an artifact lay here."""
TAKE_FOLDER = 'cd "$0" && exec tar --hard-dereference -cf - "$@" .'
TAKE_FILE = 'cd "$0" && exec tar --hard-dereference -cf - -- "$1"'
PUT_FOLDER = (
    f'mkdir -p "$0" && find "$0" -mindepth 1 -maxdepth 1 ! -path "$0/{KEPT}" -exec rm -rf {{}} + && '
    'exec tar -xpf - --no-same-owner -C "$0"'
)
PUT_FILE = 'mkdir -p "$0" && exec tar -xpf - --no-same-owner -C "$0"'


@dataclass(frozen=True, slots=True)
class Artifact:
    source: str
    """An absolute path, of a file or a folder."""
    exclude: tuple[str, ...] = ()
    """Patterns of tar, of what a folder does not give."""

    def place(self, workdir: str) -> str | None:
        """Return its path below the work folder, `.` for the folder itself; None where it lies elsewhere."""
        for folder, ours in ((ARTIFACTS, KEPT), (workdir, ".")):
            path = posixpath.relpath(self.source, folder)
            if path != ".." and not path.startswith("../"):
                return posixpath.normpath(posixpath.join(ours, path))
        return None


@dataclass(frozen=True, slots=True)
class CollectHook:
    command: str
    timeout_s: float = HOOK_S


@dataclass(frozen=True, slots=True)
class Parcel:
    """An artifact on its way."""

    place: str
    """Below the work folder: of the folder that is replaced, or of the one that the file lies in."""
    is_folder: bool
    packed: bytes
    """A tar archive."""


def read_artifacts(entries: Any) -> tuple[Artifact, ...]:
    """Return what comes over, in its order, `ARTIFACTS` with it. Raises `ValueError` with what cannot be followed."""
    if not isinstance(entries, list):
        raise ValueError(f"must be a list, got {entries!r}")
    found = [_artifact({"source": entry} if isinstance(entry, str) else entry) for entry in entries]
    if ARTIFACTS not in (artifact.source for artifact, _ in found):
        found.insert(0, (Artifact(ARTIFACTS), ARTIFACTS))
    kept: list[tuple[Artifact, str]] = []
    for artifact, output in found:
        near = [(other, place) for other, place in kept if _within(output, place) or _within(place, output)]
        if not near:
            kept.append((artifact, output))
        elif not all(
            _covers(other, artifact) and (other.source, artifact.source) == (place, output)
            for other, place in near
        ):
            raise ValueError(
                f"{near[0][0].source!r} and {artifact.source!r} overlap, so that one would be left out"
            )
    return tuple(artifact for artifact, _ in kept)


def _artifact(said: Any) -> tuple[Artifact, str]:
    """Return an entry and the path that harbor keeps it under."""
    if not isinstance(said, Mapping) or not isinstance(said.get("source"), str):
        raise ValueError(f"an entry is a path, or a table with source, got {said!r}")
    source = said["source"]
    if not source.startswith("/") or ".." in source.split("/"):
        raise ValueError(f"source must be an absolute path without '..', got {source!r}")
    _of_main(said)
    exclude = said.get("exclude") or []
    if not isinstance(exclude, list) or not all(isinstance(pattern, str) for pattern in exclude):
        raise ValueError(f"exclude must be a list of patterns, got {exclude!r}")
    artifact = Artifact(posixpath.normpath(source), tuple(exclude))
    return artifact, posixpath.normpath(f"/{said.get('destination') or artifact.source}".replace("//", "/"))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _covers(artifact: Artifact, other: Artifact) -> bool:
    """Whether what comes with one holds the other as it is."""
    if artifact.source == other.source:
        return artifact.exclude == other.exclude
    return not artifact.exclude and _within(other.source, artifact.source)


def read_hooks(entries: Any) -> tuple[CollectHook, ...]:
    """Return the commands in their order. Raises `ValueError` with what cannot be followed."""
    if not isinstance(entries, list):
        raise ValueError(f"must be a list of tables, got {entries!r}")
    found = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("command"), str):
            raise ValueError(f"must be a table with command, got {entry!r}")
        _of_main(entry)
        timeout_s = entry.get("timeout_sec", HOOK_S)
        if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not 0 < timeout_s < 1e6:
            raise ValueError(f"timeout_sec must be seconds, got {timeout_s!r}")
        found.append(CollectHook(entry["command"], float(timeout_s)))
    return tuple(found)


def _of_main(entry: Mapping[str, Any]) -> None:
    if entry.get("service") not in (None, MAIN):
        raise ValueError(
            f"service {entry['service']!r} is not followed: there is the agent's container alone"
        )


async def taken(box: Sandbox, artifacts: Iterable[Artifact], workdir: str) -> list[Parcel] | None:
    """Return the artifacts that the agent's session holds; those it lacks are left out. None if they are too much.

    box: the agent's session, in which none of its programs runs.
    """
    parcels: list[Parcel] = []
    for artifact in artifacts:
        place = artifact.place(workdir) or "."
        path = posixpath.normpath(f"{WORKDIR}/{place}")
        room = MOST_BYTES - sum(len(parcel.packed) for parcel in parcels)
        with own():
            is_folder = (await box.exec(["test", "-d", path])).ok
            if is_folder:
                ours = {KEPT: f"./{posixpath.basename(KEEPER)}", ".": f"./{KEPT}"}.get(place)
                patterns = (*artifact.exclude, *([ours] if ours else []))
                words = [TAKE_FOLDER, path, *(f"--exclude={pattern}" for pattern in patterns)]
            else:
                words = [TAKE_FILE, *posixpath.split(path)]
            packed = await box.exec(["sh", "-c", *words], timeout_s=COPY_S, max_output_bytes=room)
        if packed.truncated or packed.timed_out:
            return None
        if packed.ok:
            where = place if is_folder else posixpath.dirname(place) or "."
            parcels.append(Parcel(where, is_folder, harmless(packed.stdout)))
    return parcels


def harmless(packed: bytes) -> bytes:
    """Return a tar archive without what leads out of it, special files and rights beyond its owner's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(packed)) as given, tarfile.open(fileobj=out, mode="w") as kept:
        for member in given:
            try:
                member = tarfile.data_filter(member, NOWHERE)
            except tarfile.FilterError:
                continue
            mode = member.mode if member.isreg() else 0o755
            member = member.replace(mode=mode, uid=0, gid=0, uname="", gname="", deep=False)
            kept.addfile(member, given.extractfile(member) if member.isreg() else None)
    return out.getvalue()


async def put(box: Sandbox, parcels: Iterable[Parcel]) -> str:
    """Put artifacts into the session of the tests, in the place of what lies there; return what went wrong."""
    for parcel in parcels:
        script = PUT_FOLDER if parcel.is_folder else PUT_FILE
        path = posixpath.normpath(f"{WORKDIR}/{parcel.place}")
        with own():
            done: ExecResult = await box.exec(
                ["sh", "-c", script, path], stdin=parcel.packed, timeout_s=COPY_S
            )
        if not done.ok:
            return done.stderr.decode("utf-8", "replace")[-500:] or "too slow"
    return ""
