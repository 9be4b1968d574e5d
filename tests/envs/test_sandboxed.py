"""Sandboxed environments: a session that opens when needed, and what a model is shown of a program's end."""

import asyncio

import pytest

from asyncrl.envs.sandboxed import LazySandbox, describe
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import ExecResult, SandboxSpec


def in_loop(coroutine):
    async def whole():
        try:
            return await coroutine
        finally:
            await LauncherClient.close_shared()

    return asyncio.run(whole())


@pytest.mark.parametrize("warm", [True, False])
def test_a_session_is_opened_once_and_keeps_its_files(warm):
    async def whole():
        lazy = LazySandbox("auto", SandboxSpec(), warm=warm)
        first, second = await asyncio.gather(lazy.open(), lazy.open())
        try:
            await first.exec(code="open('kept', 'w').write('7')")
            result = await second.exec(code="print(open('kept').read())")
        finally:
            await lazy.close()
        return first is second, result.text, first.name

    same, text, name = in_loop(whole())
    assert (same, text) == (True, "7\n")
    assert (name == "zygote") or not warm


def test_a_session_that_was_never_needed_is_closed_without_being_opened():
    lazy = LazySandbox("no such backend", SandboxSpec())
    asyncio.run(lazy.close())


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (ExecResult(0, b"42\n\n"), "42"),
        (ExecResult(0), "(no output)"),
        (
            ExecResult(1, b"so far\n", b"Traceback\nValueError: x\n"),
            "so far\nerror: Traceback\nValueError: x",
        ),
        (ExecResult(3), "error: exit status 3"),
        (ExecResult(137, b"1\n", timed_out=True), "1\nerror: time limit exceeded"),
        (ExecResult(137, out_of_memory=True), "error: memory limit exceeded"),
        (ExecResult(0, b"x" * 30), "x" * 20 + "... (30 characters)"),
        (ExecResult(1, b"", b"a" * 10 + b"b" * 20), "error: ..." + "b" * 20),
        (
            ExecResult(1, b"", b"a" * 20 + b"b" * 10, phase="compile"),
            "error: " + "a" * 20 + "... (30 characters)",
        ),
        (ExecResult(0, b"\xff"), "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_programs_end_is_described_within_bounds(result, shown):
    characters = 20 if len(result.stdout + result.stderr) == 30 else 600
    assert describe(result, characters) == shown


@pytest.mark.parametrize(("fresh", "passed_on"), [(False, True), (True, False)])
def test_a_warm_session_is_passed_on_unless_it_has_to_be_fresh(fresh, passed_on):
    async def episode():
        lazy = LazySandbox("auto", SandboxSpec(), warm=True, fresh=fresh)
        try:
            box = await lazy.open()
            result = await box.exec(code="import os; print(os.listdir('.')); open('mine', 'w')")
            return result.text, getattr(box, "_session")  # noqa: B009
        finally:
            await lazy.close()

    async def whole():
        return await episode(), await episode()

    first, second = in_loop(whole())
    assert (first[0], second[0]) == ("[]\n", "[]\n")
    assert (first[1] == second[1]) == passed_on
