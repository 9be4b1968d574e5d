"""Resolve an issue of a repository at a shell; the tests of its real repair judge what is left."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from asyncrl.agent_time import needed_s
from asyncrl.env.protocol import Step
from asyncrl.env.workspace import Workspace
from asyncrl.envs.sandboxed import pick_backend
from asyncrl.envs.swe.examine import RUNS, examine
from asyncrl.envs.swe.judge import judge_patch, judge_tree, left_by_agent
from asyncrl.envs.swe.r2e import VARIABLES
from asyncrl.envs.swe.record import WORKDIR, Record, read_records
from asyncrl.envs.terminal.env import COMMAND_CHARACTERS, COMMANDS_SHARE, Terminal
from asyncrl.envs.terminal.folder import TaskFolder
from asyncrl.envs.terminal.image import BuildSettings, TaskImage
from asyncrl.envs.terminal.verify import Verdict
from asyncrl.envs.tools import call_message, say
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.protocol import MIB, Limits, Sandbox
from asyncrl.types import Message, Task

LIMITS = Limits(
    cpu_s=600, memory_bytes=2048 * MIB, address_space_bytes=0, processes=256, open_files=1024,
    file_bytes=256 * MIB, disk_bytes=512 * MIB,
)  # fmt: skip
PIECE = COMMAND_CHARACTERS - 100


class Swe(Terminal):
    """The records of the file `records`, a repository with an issue each.

    bundles: the folder of their git bundles. Every fifth record is held out. Further settings are those of `Terminal`.
    """

    levels: ClassVar[tuple[int, ...]] = ()

    def __init__(
        self,
        task: Task,
        records: str = "",
        bundles: str = "",
        test_timeout_s: float = 300.0,
        max_turns: int = 32,
        command_timeout_s: float = 60.0,
        shown_characters: int = 8000,
        sandbox: str = "auto",
        bases: Mapping[str, str] | None = None,
        build_hosts: Sequence[str] = (),
        build_timeout_s: float = 0.0,
    ) -> None:
        if not records:
            raise ValueError("records: missing; name a file of JSON lines")
        found = read_records(records, bundles)
        name = str(task.data.get("record", task.id))
        if name not in found:
            raise ValueError(f"records: {records!r} has no record {name!r}")
        self.record: Record = found[name]
        self.test_timeout_s = test_timeout_s
        super().__init__(
            task, max_turns=max_turns, command_timeout_s=command_timeout_s, shown_characters=shown_characters,
            sandbox=sandbox, bases=bases, build_hosts=build_hosts, build_timeout_s=build_timeout_s,
        )  # fmt: skip
        self.spec = replace(self.spec, limits=LIMITS, env=VARIABLES if self.record.expected else {})
        self.judge_spec = self.spec
        self.judge_image = self.image
        if self.record.expected:
            # Its tests are in the image.
            work = replace(self.work, recipe=self.record.recipe(for_judge=True))
            self.judge_image = TaskImage(work, self.building, sandbox)

    def load(self, folder: str, ignore_run: bool, building: BuildSettings) -> TaskFolder:
        record, self.building = self.record, building
        return TaskFolder(record.name, record.instruction, {}, {}, workdir=WORKDIR, recipe=record.recipe())

    @classmethod
    def tasks(cls, split: str, env: str, folder: str = "", **config: Any) -> Iterator[Task]:
        """Yield each record of the split once. Raises `ConfigError`."""
        if not config.get("records"):
            raise ConfigError("env.config.records: missing; name a file of JSON lines")
        for number, name in enumerate(read_records(config["records"], config.get("bundles", ""))):
            if (number % 5 == 4) == (split == "heldout"):
                yield Task(name, env, number, split, {"record": name})

    def least_step_s(self) -> float:
        commands_s = needed_s(self.command_timeout_s, COMMANDS_SHARE)
        return max(commands_s, needed_s(self.test_timeout_s, 1 - COMMANDS_SHARE))

    def workspace(self) -> Workspace:
        work = super().workspace()
        return replace(work, judge_timeout_s=self.test_timeout_s)

    async def judge(self, box: Sandbox) -> Step:
        """Run the tests on what an agent program has left."""
        await self.prepare()
        verdict = await self._judge_left(box)
        components = {"tests_passed": verdict.passed}
        return Step(reward=verdict.reward, done=True, success=verdict.reward == 1, components=components)

    async def _judge(self) -> Verdict:
        shell = await self._open()
        await shell.stop()
        assert self.box is not None
        return await self._judge_left(await self.box.open())

    async def _judge_left(self, box: Sandbox) -> Verdict:
        left = await left_by_agent(box, self.record)
        if left is None:
            return Verdict(0.0, 0.0, "too much is left")
        outcome = await judge_tree(self._fresh, self.record, left, self.test_timeout_s)
        return Verdict(float(outcome.grade.resolved), outcome.grade.share, outcome.output)

    async def _fresh(self, more_bytes: int) -> Sandbox:
        """Open a sandbox with the image in which nobody has worked."""
        self.judge_spec = await self.judge_image.spec(self.judge_spec)
        limits = self.judge_spec.limits or LIMITS
        spec = replace(self.judge_spec, limits=replace(limits, disk_bytes=limits.disk_bytes + more_bytes))
        box = await open_sandbox(await pick_backend(self.sandbox, warm=False), spec)
        try:
            if problem := await self.judge_image.fill(box):
                raise EnvironmentFailure(f"swe record {self.record.name}: its files do not fit: {problem}")
        except BaseException:
            await box.stop()
            raise
        return box

    async def close(self) -> None:
        self.judge_image.leave()
        await super().close()

    async def examine(self) -> str:
        """Return what is wrong with the record itself, "" for nothing: tests that are flaky, or not repaired."""
        record = self.record
        repair, reverse = (record.gold, False) if record.gold else (record.fault, True)
        before = [await judge_patch(self._fresh, record, "", self.test_timeout_s) for _ in range(RUNS)]
        after = [
            await judge_patch(self._fresh, record, repair, self.test_timeout_s, reverse) for _ in range(RUNS)
        ]
        problem = examine(record, before, after).problem()
        return f"{record.name}: {problem}" if problem else ""

    def oracle(self, messages: list[Message]) -> Message:
        """Apply the repair, in pieces that a command can hold."""
        if messages[-1]["role"] == "tool":
            return say("done")
        record = self.record
        packed = base64.b64encode((record.gold or record.fault).encode()).decode()
        pieces = [packed[i : i + PIECE] for i in range(0, len(packed), PIECE)]
        calls = [f"printf %s {piece} >> /tmp/repair" for piece in pieces]
        reverse = "" if record.gold else "-R "
        calls.append(f"base64 -d /tmp/repair | git apply --whitespace=nowarn {reverse}-")
        return call_message(*(("shell", {"command": call}) for call in calls))

    def secrets(self) -> tuple[str, ...]:
        """The repair and the tests' patch."""
        return tuple(text.strip() for text in (self.record.gold, self.record.test_patch) if text.strip())
