"""Work at a shell in a sandbox until the task is done; then tests judge the files.

The tool `shell` runs a command in one bash that keeps its folder and variables. A turn without tool calls ends the
work. The tests enter the sandbox only after the shell and everything it started have ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from asyncrl.agent_time import needed_s, own, part
from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.env.workspace import Workspace
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.sandboxed import LazySandbox
from asyncrl.envs.terminal.folder import TaskFolder, find_folders, read_folder, rename_paths
from asyncrl.envs.terminal.generate import make_task
from asyncrl.envs.terminal.image import BuildSettings, TaskImage, build_settings, hosts
from asyncrl.envs.terminal.separate import SeparateVerifier
from asyncrl.envs.terminal.shell import Shell
from asyncrl.envs.terminal.steps import SETUP, SETUP_S, Course, begin
from asyncrl.envs.terminal.verify import BASH, Verdict, verify
from asyncrl.envs.tools import ToolError, answer_calls, call_message, say, schema
from asyncrl.errors import EnvironmentFailure
from asyncrl.sandbox.archive import archive
from asyncrl.sandbox.protocol import MIB, WORKDIR, Limits, Sandbox, SandboxSpec
from asyncrl.types import Message, Task

RULES = "Do the task with tool shell, which runs bash commands. When it is done, say done."
COMMAND_CHARACTERS = 20_000
COMMANDS_SHARE = 0.55
"""The share of the agent's time in a step, for its commands; the rest is for the tests, which run its programs, too."""
LIMITS = Limits(cpu_s=60, processes=64, open_files=256, disk_bytes=64 * MIB)
THREADS = 4
"""Of a test that computes as long as its task says."""


class Terminal(ProceduralEnv):
    """Generated tasks of `level` 1 to 3, or the task folders below `folder` (`ignore_run`: without their RUN lines).

    `sandbox` names a backend; `bases`, `build_hosts`, `keep_git_history` and `build_timeout_s` say how the images of
    folders with RUN lines are built (`TaskImage`). `allow_hosts` are reached by the agent and the tests, `test_hosts`
    by the tests alone. A folder whose name ends in "heldout" is held out, as is every fifth other one.
    """

    blocking: ClassVar[bool] = False
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    tools: ClassVar[list[dict[str, Any]]] = [schema("shell", "Run a bash command.", command="string")]

    def __init__(
        self,
        task: Task,
        level: int = 1,
        folder: str = "",
        ignore_run: bool = False,
        max_turns: int = 8,
        command_timeout_s: float = 10.0,
        shown_characters: int = 2000,
        sandbox: str = "auto",
        bases: Mapping[str, str] | None = None,
        build_hosts: Sequence[str] = (),
        keep_git_history: bool = False,
        build_timeout_s: float = 0.0,
        allow_hosts: Sequence[str] = (),
        test_hosts: Sequence[str] = (),
    ) -> None:
        super().__init__(task, level)
        self.max_turns = whole_number("max_turns", max_turns, 1, 256)
        if not 0.1 <= command_timeout_s <= 600:
            raise ValueError(f"command_timeout_s: must be from 0.1 to 600, got {command_timeout_s}")
        self.command_timeout_s = command_timeout_s
        self.shown_characters = whole_number("shown_characters", shown_characters, 100, 100_000)
        building = build_settings(bases, build_hosts, keep_git_history, build_timeout_s)
        self.work = self.load(folder, ignore_run, building)
        self.image = TaskImage(self.work, building, sandbox)
        self.sandbox = sandbox
        for_all, for_tests = hosts("allow_hosts", allow_hosts), hosts("test_hosts", test_hosts)
        toml = self.work.toml
        agents, tests = toml.network.narrowed(for_all), toml.test_network.narrowed((*for_all, *for_tests))
        self.spec = replace(_spec(self.work, agents), judge_hosts=None if tests == agents else tests)
        self.course = Course(self.work)
        self.verifiers: list[SeparateVerifier | None] = []
        """Those of the steps whose tests have an environment of their own."""
        for asked in self.course.works:
            if (own := asked.verifier) is None:
                self.verifiers.append(None)
                continue
            spec = _spec(own, own.toml.network.narrowed((*for_all, *for_tests)))
            self.verifiers.append(SeparateVerifier(own, TaskImage(own, building, sandbox), sandbox, spec))
        self.step_turns = self.max_turns
        self.max_turns *= len(self.course.works)
        self.box: LazySandbox | None = None
        self.packed = b""
        self.starting = asyncio.Lock()
        self.shell: Shell | None = None
        self.turns = 0

    def load(self, folder: str, ignore_run: bool, building: BuildSettings) -> TaskFolder:
        """Return the task's folder. Raises `ConfigError`, or `ValueError` for one that is not in `folder`."""
        if folder:
            return read_folder(_chosen(self.task, folder), ignore_run, building.engine_builds)
        return self.draw(lambda rng: make_task(self.level, rng), lambda t: t.instruction)

    @classmethod
    def tasks(cls, split: str, env: str, folder: str = "", **config: Any) -> Iterator[Task]:
        """Yield generated tasks forever, or each task folder of the split once."""
        if not folder:
            yield from super().tasks(split, env, **config)
            return
        for number, path in enumerate(find_folders(folder)):
            heldout = path.name.endswith("heldout") or number % 5 == 4
            if heldout == (split == "heldout"):
                yield Task(path.name, env, number, split, {"folder": str(path)})

    def least_step_s(self) -> float:
        """A command may take its time limit, and tests as long as their folder says."""
        commands_s = needed_s(self.command_timeout_s, COMMANDS_SHARE)
        return max(commands_s, needed_s(self.work.toml.said_timeout_s, 1 - COMMANDS_SHARE))

    def opening(self) -> list[Message]:
        """Return the messages that begin the conversation."""
        return [{"role": "system", "content": RULES}, self._asked()]

    def _asked(self) -> Message:
        work = self.course.work
        return {"role": "user", "content": rename_paths(work.instruction, work.workdir).strip()}

    def reset(self) -> list[Message] | Awaitable[list[Message]]:
        verifier_needs = any(verifier and verifier.image.needed for verifier in self.verifiers)
        return self._reset_built() if self.image.needed or verifier_needs else self.opening()

    async def _reset_built(self) -> list[Message]:
        self._begin_verifier()
        await self.image.begin()
        return self.opening()

    def _begin_verifier(self) -> None:
        """Begin to build the image of the tests, which are waited for when they judge."""
        for verifier in filter(None, self.verifiers):
            verifier.image.start()

    async def prepare(self) -> None:
        """Build the task's image, which `workspace` needs. Raises `InfrastructureError` with the reason."""
        self._begin_verifier()
        self.spec = await self.image.spec(self.spec)
        self.packed = await self.image.packed()

    async def step(self, action: Action) -> Step:
        """Run the commands of a turn in order; judge after the last turn or one without commands. A task of steps goes
        on then with the next one's instruction."""
        self.turns += 1
        components = {
            "commands": float(len(action.tool_calls)),
            "malformed": float(bool(action.parse_errors)),
        }
        with part(COMMANDS_SHARE):
            # A subclass may offer it under the name that an agent program has for it.
            messages = await answer_calls(action, self.tools, {self.tools[0]["function"]["name"]: self._run})
        if messages and self.turns < self.step_turns:
            return Step(messages, components=components)
        with part(1 - COMMANDS_SHARE):
            found = await self._judged(await self._judge())
        self.turns = 0
        return replace(
            found, messages=[] if found.done else [*messages, *found.messages],
            components={**components, **found.components},
            truncated=found.done and bool(messages) and not found.success,
        )  # fmt: skip

    async def _judged(self, verdict: Verdict, box: Sandbox | None = None) -> Step:
        """Return what follows a verdict: the end, or what is asked next in the session that was judged.

        box: that session, where it is not the environment's own.
        """
        course = self.course
        components = {"tests_passed": verdict.passed / len(course.works), **verdict.components}
        if course.step is not None:
            components[f"step_{course.at + 1}"] = verdict.reward
        if course.earn(verdict.reward) and await self._next_step(verdict, box):
            return Step([self._asked()], course.turn_reward(done=False), components=components)
        total = course.total
        reward = course.turn_reward(done=True)
        return Step(reward=reward, done=True, success=total == 1, components=components)

    async def _next_step(self, verdict: Verdict, box: Sandbox | None) -> bool:
        """Make the session ready for the step that follows. What an agent has spoiled so that it cannot counts as
        judged, with nothing earned: there is no way to leave out a step that would be lost."""
        if not verdict.spent:
            assert self.course.step is not None and (box is not None or self.box is not None)
            if box is None and self.box is not None:
                box = await self.box.open()
            if box is not None and not await begin(box, self.course.step):
                return True
        self.course.rewards.append(0.0)
        return False

    def workspace(self) -> Workspace:
        """Return the task as a folder for an agent program; see `asyncrl.env.workspace`."""
        work, step = self.work, self.course.step
        files, executable = dict(work.files), work.executable
        setup: tuple[str, ...] = ()
        if step is not None:
            files |= step.prepared()
            executable |= step.executable
            setup = (*BASH, f"{WORKDIR}/{SETUP}") if SETUP in step.files else ()
        return Workspace(
            self._asked()["content"], files, executable, self._judging_s(), self.spec, self.packed, setup,
            steps=len(self.course.works),
        )  # fmt: skip

    def _judging_s(self) -> float:
        """Return the longest that one verdict takes, with what comes before the step that follows."""
        longest_s = max(work.toml.verifier_timeout_s for work in self.course.works)
        return longest_s + (SETUP_S if any(SETUP in step.files for step in self.work.steps) else 0.0)

    async def judge(self, box: Sandbox) -> Step:
        """Run the tests on what an agent program has left; and of a task of steps that goes on, make this sandbox's
        folder what the program is asked to work on next."""
        return await self._judged(await self._verdict(box), box)

    async def close(self) -> None:
        self.image.leave()
        for verifier in filter(None, self.verifiers):
            verifier.image.leave()
        if self.box is not None:
            await self.box.close()

    def oracle(self, messages: list[Message]) -> Message:
        work = self.course.work
        if not work.solution:
            raise NotImplementedError
        if messages[-1]["role"] == "tool":
            return say("done")
        command = rename_paths(work.solution, work.workdir).strip()
        # A script may set options and exit; a single command is shown unchanged.
        return call_message(
            ("shell", {"command": f"(\n{command}\n)" if command.startswith("#!") else command})
        )

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Run one or two common commands on files of the task."""
        if messages[-1]["role"] == "tool" and rng.random() < 0.7:
            return say("done")
        commands = self.work.guesses or ("ls", "ls -la | head -n 3 > out.txt", "touch done.txt")
        return call_message(("shell", {"command": rng.choice(commands)}))

    def problem_key(self) -> str:
        return "\n".join(work.instruction for work in self.course.works)

    def secrets(self) -> tuple[str, ...]:
        """The tests and the solutions."""
        texts = [
            text.strip()
            for work in self.course.works
            for text in (*(data.decode("utf-8", "replace") for data in work.tests.values()), work.solution)
        ]
        return tuple(dict.fromkeys(text for text in texts if text))

    async def _run(self, command: str) -> str:
        if len(command) > COMMAND_CHARACTERS:
            raise ToolError(f"a command has at most {COMMAND_CHARACTERS} characters")
        shell = await self._open()
        return await shell.run(command, self.command_timeout_s)

    async def _open(self) -> Shell:
        """Start the sandbox with the task's files, once."""
        async with self.starting:
            if self.shell is None:
                self.spec = await self.image.spec(self.spec)
                self.box = LazySandbox(self.sandbox, self.spec)
                box = await self.box.open()
                if problem := await self.image.fill(box):
                    raise EnvironmentFailure(
                        f"terminal task {self.work.name}: its files do not fit: {problem}"
                    )
                files = archive(self.work.files, self.work.executable)
                with own():
                    unpacked = await box.exec(["tar", "-xf", "-"], stdin=files)
                if not unpacked.ok:
                    raise EnvironmentFailure(
                        f"terminal task {self.work.name}: its files do not fit: {unpacked.stderr[-500:]!r}"
                    )
                if self.course.step is not None:
                    with own():
                        problem = await begin(box, self.course.step)
                    if problem:
                        raise EnvironmentFailure(f"terminal task {self.work.name}: {problem}")
                self.shell = Shell(box, self.shown_characters)
            return self.shell

    async def _judge(self) -> Verdict:
        shell = await self._open()
        await shell.stop()
        assert self.box is not None
        return await self._verdict(await self.box.open())

    async def _verdict(self, box: Sandbox) -> Verdict:
        """Judge a session in which no program of the agent runs."""
        work, verifier = self.course.work, self.verifiers[self.course.at]
        for hook in work.toml.collect:
            command = rename_paths(hook.command, work.workdir)
            # As harbor does, nothing is made of how it ends.
            await box.exec([*BASH, "-c", command], timeout_s=hook.timeout_s)
        if verifier is not None:
            return await verifier.verify(box, work)
        return await verify(box, work, goes_on=not self.course.is_last)


def _spec(work: TaskFolder, allow_hosts: Sequence[str]) -> SandboxSpec:
    return SandboxSpec(
        "bash", _limits(work), image=work.image, env=work.toml.env, allow_hosts=tuple(allow_hosts)
    )


def _limits(work: TaskFolder) -> Limits:
    """Return the limits of the task's sessions. One that says its memory counts what is held, not what is reserved."""
    toml = work.toml
    limits = replace(LIMITS, cpu_s=max(LIMITS.cpu_s, math.ceil(THREADS * toml.said_timeout_s)))
    if toml.memory_bytes:
        limits = replace(
            limits, memory_bytes=toml.memory_bytes, address_space_bytes=0, processes=512, open_files=1024
        )
    if toml.storage_bytes:
        limits = replace(limits, disk_bytes=toml.storage_bytes, file_bytes=toml.storage_bytes)
    return limits


def _chosen(task: Task, folder: str) -> Path:
    """Return the task's folder, which is one of those below the configured one. Raises `ValueError` for any other."""
    named = task.data.get("folder")
    if named is None:
        return find_folders(folder)[task.seed]
    path = Path(str(named)).resolve()
    if path.parent != Path(folder).resolve():
        raise ValueError(f"folder: task {task.id!r} names {named!r}, which is not in {folder!r}")
    return path
