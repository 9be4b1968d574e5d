"""Resolve an issue of a repository at a shell, or set the repository up; tests of its real repair judge either."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from asyncrl.agent_time import needed_s
from asyncrl.env.protocol import Step
from asyncrl.envs.sandboxed import pick_backend
from asyncrl.envs.swe.examine import RUNS, examine
from asyncrl.envs.swe.judge import judge_patch, judge_tree, left_by_agent
from asyncrl.envs.swe.r2e import VARIABLES
from asyncrl.envs.swe.record import WORKDIR, Record, read_records
from asyncrl.envs.swe.setup import (
    SCRIPT,
    Judged,
    check_setup,
    gold_script,
    instruction,
    judge_script,
    script_left,
)
from asyncrl.envs.terminal.env import COMMAND_CHARACTERS, COMMANDS_SHARE, Terminal
from asyncrl.envs.terminal.folder import TaskFolder
from asyncrl.envs.terminal.image import BuildSettings, TaskImage
from asyncrl.envs.terminal.verify import Verdict
from asyncrl.envs.tools import call_message, say
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.protocol import MIB, Limits, Sandbox, SandboxSpec
from asyncrl.types import Message, Task

LIMITS = Limits(
    cpu_s=600, memory_bytes=2048 * MIB, address_space_bytes=0, processes=256, open_files=1024,
    file_bytes=256 * MIB, disk_bytes=512 * MIB,
)  # fmt: skip
PIECE = COMMAND_CHARACTERS - 100
REPAIR, SETUP = "repair", "setup"
SETUP_RUNS = 2
"""Of the tests, for one script."""


class Swe(Terminal):
    """The records of the file `records`, a repository with an issue each.

    work: "repair" for the issue, or "setup" for a script that installs the repository. bundles: the folder of their git
    bundles. Every fifth record is held out. Further settings are those of `Terminal`.
    """

    levels: ClassVar[tuple[int, ...]] = ()

    def __init__(
        self,
        task: Task,
        records: str = "",
        bundles: str = "",
        work: str = REPAIR,
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
        _check_work(work, [self.record])
        self.sets_up = work == SETUP
        self.test_timeout_s = test_timeout_s
        super().__init__(
            task, max_turns=max_turns, command_timeout_s=command_timeout_s, shown_characters=shown_characters,
            sandbox=sandbox, bases=bases, build_hosts=build_hosts, build_timeout_s=build_timeout_s,
        )  # fmt: skip
        self.spec = replace(self.spec, limits=LIMITS, env=VARIABLES if self.record.expected else {})
        self.judge_spec = self.spec
        if self.sets_up:
            # The agent tries out what its script will do.
            self.spec = replace(self.spec, allow_hosts=self.building.build_hosts)
        self.judge_image = self.image
        if self.record.expected:
            # Its tests are in the image.
            folder = replace(self.work, recipe=self.record.recipe(for_judge=True))
            self.judge_image = TaskImage(folder, self.building, sandbox)

    def load(self, folder: str, ignore_run: bool, building: BuildSettings) -> TaskFolder:
        record, self.building = self.record, building
        text = instruction(record) if self.sets_up else record.instruction
        recipe = record.recipe(installed=not self.sets_up)
        return TaskFolder(record.name, text, {}, {}, workdir=WORKDIR, recipe=recipe)

    @classmethod
    def tasks(cls, split: str, env: str, folder: str = "", **config: Any) -> Iterator[Task]:
        """Yield each record of the split once. Raises `ConfigError`."""
        if not config.get("records"):
            raise ConfigError("env.config.records: missing; name a file of JSON lines")
        work = config.get("work", REPAIR)
        try:
            _check_work(work)
            found = read_records(config["records"], config.get("bundles", ""))
            _check_work(work, found.values())
        except ValueError as error:
            raise ConfigError(f"env.config.{error}") from error
        for number, name in enumerate(found):
            if (number % 5 == 4) == (split == "heldout"):
                yield Task(name, env, number, split, {"record": name})

    def least_step_s(self) -> float:
        commands_s = needed_s(self.command_timeout_s, COMMANDS_SHARE)
        return max(commands_s, needed_s(self._judging_s(), 1 - COMMANDS_SHARE))

    def _judging_s(self) -> float:
        """The longest that judging takes."""
        return (
            self.image.limits().timeout_s + SETUP_RUNS * self.test_timeout_s
            if self.sets_up
            else self.test_timeout_s
        )

    async def judge(self, box: Sandbox) -> Step:
        """Run the tests on what an agent program has left."""
        await self.prepare()
        return await self._judged(await self._verdict_on(box))

    async def _judge(self) -> Verdict:
        shell = await self._open()
        await shell.stop()
        assert self.box is not None
        return await self._verdict_on(await self.box.open())

    async def _verdict_on(self, box: Sandbox) -> Verdict:
        if not self.sets_up:
            return await self._judge_left(box)
        judged = await self._judge_script(await script_left(box))
        return Verdict(judged.reward, judged.share, judged.output, judged.components)

    async def _judge_script(self, script: bytes | None) -> Judged:
        return await judge_script(
            await self.image.built(), self.image.limits(), self._fresh, self._open_box, self.judge_spec, self.record,
            script, self.test_timeout_s,
        )  # fmt: skip

    async def _open_box(self, spec: SandboxSpec) -> Sandbox:
        return await open_sandbox(await pick_backend(self.sandbox, warm=False), spec)

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
        box = await self._open_box(spec)
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
        """Return what is wrong with the record itself, "" for nothing: tests that are flaky, or not repaired; or
        install commands that do not set the repository up, or need not."""
        if self.sets_up:
            return await self._examine_setup()
        record = self.record
        repair, reverse = (record.gold, False) if record.gold else (record.fault, True)
        before = [await judge_patch(self._fresh, record, "", self.test_timeout_s) for _ in range(RUNS)]
        after = [
            await judge_patch(self._fresh, record, repair, self.test_timeout_s, reverse) for _ in range(RUNS)
        ]
        problem = examine(record, before, after).problem()
        return f"{record.name}: {problem}" if problem else ""

    async def _examine_setup(self) -> str:
        gold, nothing = [
            await self._judge_script(text.encode()) for text in (gold_script(self.record), ":\n")
        ]
        if not gold.reward:
            return f"{self.record.name}: its own install commands are not enough: {gold.output[-1000:]}"
        return f"{self.record.name}: its tests run without a set-up" if nothing.reward else ""

    def problem_key(self) -> str:
        record = self.record
        if not self.sets_up:
            return super().problem_key()
        return json.dumps([record.image, str(record.bundle), record.base_commit, record.fault])

    def oracle(self, messages: list[Message]) -> Message:
        """Apply the repair, or write a script of the install commands, in pieces that a command can hold."""
        if messages[-1]["role"] == "tool":
            return say("done")
        record = self.record
        text = gold_script(record) if self.sets_up else record.gold or record.fault
        packed = base64.b64encode(text.encode()).decode()
        pieces = [packed[i : i + PIECE] for i in range(0, len(packed), PIECE)]
        calls = [f"printf %s {piece} >> /tmp/solution" for piece in pieces]
        reverse = "" if record.gold else "-R "
        last = f"> {SCRIPT}" if self.sets_up else f"| git apply --whitespace=nowarn {reverse}-"
        calls.append(f"base64 -d /tmp/solution {last}")
        return call_message(*(("shell", {"command": call}) for call in calls))

    def secrets(self) -> tuple[str, ...]:
        """The repair and the tests' patch."""
        return tuple(text.strip() for text in (self.record.gold, self.record.test_patch) if text.strip())


def _check_work(work: str, records: Iterable[Record] = ()) -> None:
    """Raise `ValueError` naming the key, for a word that is none and for records that give no such work."""
    if work not in (REPAIR, SETUP):
        raise ValueError(f'work: must be "{REPAIR}" or "{SETUP}", got {work!r}')
    for record in records if work == SETUP else ():
        try:
            check_setup(record)
        except ValueError as error:
            raise ValueError(f'work = "{SETUP}": {error}') from error
