"""Find and repair the fault of a small repository: read, search, edit, run its tests, then say that it is done.

Hidden calls in a fresh sandbox judge the result; the expected return values stay outside. Reward 1 if all agree.
"""

from __future__ import annotations

import json
from importlib import resources
from random import Random
from typing import Any, ClassVar

from asyncrl.agent_time import needed_s, part
from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.env.workspace import Workspace
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.repair.faults import faults
from asyncrl.envs.repair.problem import Repository, make_repository
from asyncrl.envs.sandboxed import LazySandbox, describe
from asyncrl.envs.tools import Handler, ToolError, answer_calls, call_message, say, schema
from asyncrl.errors import InputError
from asyncrl.sandbox.protocol import Limits, Sandbox, SandboxSpec
from asyncrl.types import Message, Task

RULES = "A test fails. Find the fault and repair it with the tools. When it is repaired, say done."
FILE_CHARACTERS = 20_000
TASK = "A test of this small Python repository fails. Find the fault in its code and repair it."
RUN_TESTS = "run_tests.py"
MAX_FILES = 40
CALLS_SHARE = 0.5
"""The share of the agent's time in a step, for its calls; the rest is for the hidden ones that judge."""
WALL_S = 5.0
SPEC = SandboxSpec(limits=Limits(wall_s=WALL_S), env={"PYTHONHASHSEED": "0"})


class Repair(ProceduralEnv):
    """`level` 1: one function; 2: a module of four; 3: four modules with two faults."""

    blocking: ClassVar[bool] = False
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    tools: ClassVar[list[dict[str, Any]]] = [
        schema("read", "Show a file.", path="string"),
        schema("search", "Find lines with a text.", text="string"),
        schema("edit", "Replace the one place where old stands.", path="string", old="string", new="string"),
        schema("run_tests", "Run the tests."),
    ]

    def __init__(
        self,
        task: Task,
        level: int = 1,
        max_turns: int = 12,
        shown_characters: int = 3000,
        sandbox: str = "auto",
    ) -> None:
        super().__init__(task, level)
        self.max_turns = whole_number("max_turns", max_turns, 1, 128)
        self.shown_characters = whole_number("shown_characters", shown_characters, 200, 100_000)
        self.repository: Repository = self.draw(
            lambda rng: make_repository(self.level, rng), lambda r: json.dumps(_faulty(r))
        )
        self.files = dict(self.repository.files)
        self.sandbox = sandbox
        self.box = LazySandbox(sandbox, SPEC, warm=True)
        self.turns = 0

    def least_step_s(self) -> float:
        return needed_s(WALL_S, CALLS_SHARE)

    def reset(self) -> list[Message]:
        names = ", ".join(sorted(self.files))
        return [{"role": "system", "content": RULES}, {"role": "user", "content": f"Files: {names}"}]

    async def step(self, action: Action) -> Step:
        """Carry out the calls of a turn in order; judge after the last turn or one without calls."""
        self.turns += 1
        components = {"malformed": float(bool(action.parse_errors)), "calls": float(len(action.tool_calls))}
        handlers: dict[str, Handler] = {
            "read": self._read,
            "search": self._search,
            "edit": self._edit,
            "run_tests": self._run_tests,
        }
        messages: list[Message] = []
        with part(CALLS_SHARE):
            for call in action.tool_calls:
                # One after the other: an edit must be visible to the next call.
                messages += await answer_calls(Action("", (call,)), self.tools, handlers)
        messages += await answer_calls(Action("", (), action.parse_errors), self.tools, handlers)
        if messages and self.turns < self.max_turns:
            return Step(messages, components=components)
        with part(1 - CALLS_SHARE):
            right = await self._judge()
        components["calls_right"] = right
        return Step(
            reward=float(right == 1.0), done=True, success=right == 1.0, components=components,
            truncated=bool(messages) and right < 1,
        )  # fmt: skip

    def workspace(self) -> Workspace:
        """Return the repository as a folder for an agent program; see `asyncrl.env.workspace`."""
        files = {path: text.encode() for path, text in self.files.items()} | {
            RUN_TESTS: _program("tests_runner").encode()
        }
        return Workspace(
            f"{TASK} Its tests run with: python3 {RUN_TESTS}", files, judge_timeout_s=WALL_S, judge_spec=SPEC
        )

    async def judge(self, box: Sandbox) -> Step:
        """Make the hidden calls in what an agent program has left."""
        right = await self._judge_in(box)
        return Step(
            reward=float(right == 1.0), done=True, success=right == 1.0, components={"calls_right": right}
        )

    async def close(self) -> None:
        await self.box.close()

    def oracle(self, messages: list[Message]) -> Message:
        """Run the tests, read the faulty files, restore the right lines, run the tests again."""
        edits = self.repository.edits()
        moves = [call_message(("run_tests", {}))]
        moves += [call_message(("read", {"path": path})) for path, _, _ in edits]
        moves += [call_message(("edit", {"path": p, "old": old, "new": new})) for p, old, new in edits]
        moves += [call_message(("run_tests", {})), say("done")]
        return moves[min(sum(m["role"] == "tool" for m in messages), len(moves) - 1)]

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Read a module, change a random expression, and say that it is done."""
        done = sum(m["role"] == "tool" for m in messages)
        modules = sorted(path for path in self.files if "/" not in path)
        if done == 0:
            return call_message(("read", {"path": rng.choice(modules)}))
        path = next((p for p in modules if self.files[p] == messages[-1]["content"]), modules[0])
        source = self.files[path]
        names = [line[4:].partition("(")[0] for line in source.splitlines() if line.startswith("def ")]
        found = faults(source, rng.choice(names)) if done == 1 else []
        if not found:
            return say("done")
        fault = rng.choice(found)
        line = source[: fault.start].count("\n")
        old, new = source.splitlines()[line], fault.apply(source).splitlines()[line]
        return call_message(("edit", {"path": path, "old": old, "new": new}))

    def problem_key(self) -> str:
        return json.dumps(_faulty(self.repository))

    def secrets(self) -> tuple[str, ...]:
        """The right lines, and the hidden calls with their results."""
        lines = [new for _, _, new in self.repository.edits()]
        return (*lines, json.dumps(self.repository.expected))

    def _read(self, path: str) -> str:
        if path not in self.files:
            raise ToolError(f"there is no file {path[:80]!r}; there are {', '.join(sorted(self.files))}")
        return self.files[path]

    def _search(self, text: str) -> str:
        found = [
            f"{path}:{number}: {line.strip()}"
            for path in sorted(self.files)
            for number, line in enumerate(self.files[path].splitlines(), 1)
            if text in line
        ]
        return "\n".join(found)[: self.shown_characters] or "nothing found"

    def _edit(self, path: str, old: str, new: str) -> str:
        source = self._read(path)
        if source.count(old) != 1 or not old:
            raise ToolError(
                f"old must stand once in {path}, and stands there {source.count(old) if old else 0} times"
            )
        changed = source.replace(old, new)
        if len(changed) > FILE_CHARACTERS:
            raise ToolError(f"a file has at most {FILE_CHARACTERS} characters")
        self.files[path] = changed
        return "edited"

    async def _run_tests(self) -> str:
        box = await self.box.open()
        try:
            await self._write(box, self.files)
        except InputError as error:
            # Caused by the repository's code, such as a full disk or a folder in place of a file.
            raise ToolError(str(error)) from error
        return describe(await box.exec(code=_program("tests_runner")), self.shown_characters)

    async def _judge(self) -> float:
        """Return the share of hidden calls with the expected result, in a sandbox where no program of the agent has
        run."""
        if not self.repository.calls:
            return 0.0
        box = LazySandbox(self.sandbox, SPEC, warm=True, fresh=True)
        try:
            opened = await box.open()
            await self._write(opened, {p: text for p, text in self.files.items() if "/" not in p})
            return await self._judge_in(opened)
        finally:
            await box.close()

    async def _judge_in(self, box: Sandbox) -> float:
        """Make the calls in the folder of a sandbox where no program of the agent runs."""
        if not self.repository.calls:
            return 0.0
        calls = json.dumps(self.repository.calls).encode()
        result = await box.exec(code=_program("grade_runner"), language="python", stdin=calls)
        given = _last_list(result.text)
        right = sum(a == b for a, b in zip(given, self.repository.expected, strict=False))
        return right / len(self.repository.expected)

    async def _write(self, box: Sandbox, files: dict[str, str]) -> None:
        for path, text in files.items():
            await box.write(path, text.encode("utf-8", "surrogatepass"))


def _faulty(repository: Repository) -> list[str]:
    """Return the texts of the files with a fault."""
    return [text for path, text in repository.files.items() if text != repository.repaired[path]]


def _program(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.py").read_text(encoding="utf-8")


def _last_list(output: str) -> list[Any]:
    """Return the list on the last line with one; empty if the code ended the interpreter earlier."""
    for line in reversed(output.splitlines()):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list):
            return found
    return []
