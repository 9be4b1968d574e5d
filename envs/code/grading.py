"""Judges a program: runs it on every input in its own sandbox and compares the output outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.envs.sandboxed import describe
from asyncrl.errors import ConfigError
from asyncrl.extensions.program_rewards.extraction import last_block as extract  # noqa: F401
from asyncrl.sandbox import languages
from asyncrl.sandbox.backends import choose, open_sandbox
from asyncrl.sandbox.protocol import ExecResult, Sandbox, SandboxSpec

PROGRAM_CHARACTERS = 50_000
_known: set[tuple[str, str]] = set()
"""(backend, language) pairs whose tools were found."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one program."""

    passed: tuple[bool, ...]
    """By test; shorter if the program did not reach the others."""
    complaint: str = ""
    """What is wrong with the first failing test, or with the whole program; may be shown to the model."""
    compiled: bool = True


async def judge(
    program: str, tests: Sequence[tuple[str, str]], language: str, backend: str, time_limit_s: float
) -> Verdict:
    """Run a program on the inputs of `tests` (stdin, expected stdout), in order.

    Only inputs enter the sandbox, which is new and removed afterwards. A test that runs out of time is the last one
    run. Raises `ConfigError` if the language's tools are not installed.
    """
    if not program.strip():
        return Verdict((), "error: no program")
    if len(program) > PROGRAM_CHARACTERS:
        return Verdict((), f"error: a program has at most {PROGRAM_CHARACTERS} characters")
    backend = (await choose(backend)).backend
    async with await open_sandbox(backend, SandboxSpec(language=language)) as box:
        await _need_tools(box, backend, language)
        built, argv = await box.build(program)
        if not built.ok:
            return Verdict((), describe(built), compiled=False)
        passed: list[bool] = []
        complaint = ""
        for given, expected in tests:
            result = await box.exec(argv, stdin=given.encode(), timeout_s=time_limit_s)
            passed.append(result.ok and same(result.text, expected))
            complaint = complaint or ("" if passed[-1] else _complaint(given, expected, result))
            if result.timed_out:
                break
        return Verdict(tuple(passed), complaint)


def same(printed: str, expected: str) -> bool:
    """Return True if two outputs agree line by line, ignoring trailing blanks and empty lines at the end."""
    return [line.rstrip() for line in printed.rstrip().split("\n")] == [
        line.rstrip() for line in expected.rstrip().split("\n")
    ]


def _complaint(given: str, expected: str, result: ExecResult) -> str:
    if not result.ok:
        return describe(result)
    return f"in: {given}expected: {expected}got: {describe(result)}"


async def _need_tools(box: Sandbox, backend: str, language: str) -> None:
    """Raise `ConfigError` if the sandbox lacks the language's compiler or interpreter. Checked once."""
    profile = languages.get(language)
    tool = (profile.compile or profile.run)[0]
    if (backend, language) in _known:
        return
    found = await box.exec(["sh", "-c", 'command -v "$0"', tool])
    if not found.ok:
        packages = " ".join(profile.packages)
        raise ConfigError(
            f"language {language!r} needs {tool!r}, which is not installed; install: {packages}"
        )
    _known.add((backend, language))
