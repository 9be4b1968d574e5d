"""Judges tasks whose tests have an environment of their own: of the agent's session only the artifacts come there."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace

from asyncrl.agent_time import own
from asyncrl.envs.sandboxed import pick_backend
from asyncrl.envs.terminal.artifacts import Parcel, put, taken
from asyncrl.envs.terminal.folder import TESTS, TaskFolder
from asyncrl.envs.terminal.image import TaskImage
from asyncrl.envs.terminal.verify import Verdict, verify
from asyncrl.errors import EnvironmentFailure
from asyncrl.sandbox.archive import archive
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.protocol import MIB, Limits, Sandbox, SandboxSpec

COPY_S = 60.0
TESTS_BYTES = 64 * MIB


class SeparateVerifier:
    """Opens a session for each verdict, in which nothing of the agent has run."""

    def __init__(self, work: TaskFolder, image: TaskImage, sandbox: str, spec: SandboxSpec) -> None:
        """work: the environment of the tests. spec: of its sessions, without its image."""
        self.work, self.image, self.sandbox, self.spec = work, image, sandbox, spec

    async def verify(self, box: Sandbox, task: TaskFolder) -> Verdict:
        """Judge what the agent's session holds, in which none of its programs runs.

        Raises as `TaskImage.begin` does, and `EnvironmentFailure` if the tests give no verdict.
        """
        parcels = await taken(box, task.toml.artifacts, task.workdir)
        if parcels is None:
            return Verdict(0.0, 0.0, "the artifacts are too large")
        own_box = await self._open(3 * sum(len(parcel.packed) for parcel in parcels))
        try:
            await self._fill(own_box)
            return await self._judge(own_box, parcels)
        finally:
            await own_box.stop()

    async def _judge(self, box: Sandbox, parcels: list[Parcel]) -> Verdict:
        if problem := await put(box, parcels):
            # Such as a file in the place of a folder: that is the agent's doing.
            return Verdict(0.0, 0.0, problem)
        work = self.work
        if work.tests_in_image:
            work = replace(work, tests=await self._tests_of(box))
        return await verify(box, work)

    async def _open(self, more_bytes: int) -> Sandbox:
        spec = await self.image.spec(self.spec)
        limits = spec.limits or Limits()
        spec = replace(spec, limits=replace(limits, disk_bytes=limits.disk_bytes + more_bytes))
        return await open_sandbox(await pick_backend(self.sandbox, warm=False), spec)

    async def _fill(self, box: Sandbox) -> None:
        problem = await self.image.fill(box)
        if not problem:
            with own():
                files = archive(self.work.files, self.work.executable)
                unpacked = await box.exec(["tar", "-xf", "-"], stdin=files, timeout_s=COPY_S)
            problem = "" if unpacked.ok else unpacked.stderr.decode("utf-8", "replace")[-500:]
        if problem:
            raise EnvironmentFailure(f"terminal task {self.work.name}: its files do not fit: {problem}")

    async def _tests_of(self, box: Sandbox) -> dict[str, bytes]:
        """Return what the image holds in `/tests`."""
        with own():
            packed = await box.exec(
                ["tar", "-chf", "-", "-C", TESTS, "."], timeout_s=COPY_S, max_output_bytes=TESTS_BYTES
            )
        if packed.truncated or not packed.ok:
            reason = packed.stderr.decode("utf-8", "replace")[-500:] or "too large"
            raise EnvironmentFailure(f"terminal task {self.work.name}: its image has no {TESTS}: {reason}")
        found: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
            for member in files:
                if member.isreg() and (file := files.extractfile(member)) is not None:
                    found[member.name.removeprefix("./")] = file.read()
        if "test.sh" not in found:
            raise EnvironmentFailure(f"terminal task {self.work.name}: its image has no {TESTS}/test.sh")
        return found
