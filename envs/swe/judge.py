"""Runs a record's tests on a repository, in a sandbox in which nothing of the agent has run.

What the agent has changed is taken as a patch would say it: files that the repository does not ignore. Its `.git` is
not looked at. Then the tests are put back: the files that decide, the tests' patch, and every conftest.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from asyncrl.agent_time import own
from asyncrl.envs.swe import r2e
from asyncrl.envs.swe.grade import Grade, grade, read
from asyncrl.envs.swe.record import Record
from asyncrl.errors import EnvironmentFailure
from asyncrl.sandbox.archive import archive
from asyncrl.sandbox.protocol import MIB, ExecResult, Sandbox

TREE, INPUT = "/tmp/tree", "/tmp/input"
COPY_S = 60.0
OUTPUT_BYTES = 8 * MIB
LEFT_BYTES = 256 * MIB
GIT = "git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.autocrlf=false"
TAKE = f"""
set -e
export GIT_DIR="$PWD/.git" HOME=/tmp
{GIT} --work-tree={TREE} add -A
tree=$({GIT} write-tree)
# The index must not say that the work folder has these files already.
{GIT} read-tree HEAD
{GIT} --work-tree="$PWD" read-tree --reset -u "$tree"
rm -rf {TREE}
"""
RESTORE = f"""
set -e
export HOME=/tmp
{{ cat {INPUT}/restored; find . -name conftest.py -not -path './.git/*'; {GIT} ls-tree -r --name-only HEAD | \
    grep -E '(^|/)conftest[.]py$' || true; }} | sort -u | while read -r path; do
    if {GIT} cat-file -e "HEAD:${{path#./}}" 2>/dev/null; then
        {GIT} checkout -q HEAD -- "$path"
    else
        rm -rf "$path"
    fi
done
[ ! -s {INPUT}/test.patch ] || {GIT} apply --whitespace=nowarn {INPUT}/test.patch
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    grade: Grade
    output: str
    exit_status: int
    statuses: Mapping[str, str]


async def left_by_agent(box: Sandbox, record: Record) -> bytes | None:
    """Return the work folder of a sandbox as a tar archive without its repository; None if there is too much in it."""
    others = [f"--exclude={path}" for path in ("./.git", *(r2e.NOT_LEFT if record.expected else ()))]
    with own():
        packed = await box.exec(
            ["tar", "-cf", "-", *others, "."], timeout_s=COPY_S, max_output_bytes=LEFT_BYTES
        )
    return None if packed.truncated or packed.timed_out else packed.stdout


async def judge_tree(
    fresh: Callable[[int], Awaitable[Sandbox]], record: Record, left: bytes, timeout_s: float
) -> Outcome:
    """Judge what `left` makes of the repository.

    fresh: opens a sandbox with the record's image and so many bytes of room for the agent's files. Raises
    `EnvironmentFailure` where the tests cannot be put back, which no agent has a part in.
    """
    box = await fresh(3 * len(left))
    try:
        with own():
            await _must(box, ["mkdir", "-p", TREE, INPUT], b"", "its folders")
            unpacked = await box.exec(
                ["tar", "-xpf", "-", "-C", TREE, "--no-same-owner"], stdin=left, timeout_s=COPY_S
            )
            taken = await box.exec(["bash", "-c", TAKE], timeout_s=COPY_S) if unpacked.ok else unpacked
            if not taken.ok:
                # Such as a name that git cannot hold: the work cannot be judged, and that is the agent's doing.
                return Outcome(
                    Grade(False, 0.0), taken.stderr.decode("utf-8", "replace"), taken.returncode, {}
                )
            await _restore(box, record)
        return await _tests(box, record, timeout_s)
    finally:
        await box.stop()


async def judge_patch(
    fresh: Callable[[int], Awaitable[Sandbox]],
    record: Record,
    patch: str,
    timeout_s: float,
    reverse: bool = False,
) -> Outcome:
    """Judge the repository with a patch, "" for none. Raises `EnvironmentFailure` where it does not apply."""
    box = await fresh(3 * len(patch))
    try:
        if patch:
            await _apply(box, patch, reverse)
        await _restore(box, record)
        return await _tests(box, record, timeout_s)
    finally:
        await box.stop()


async def tree(
    fresh: Callable[[int], Awaitable[Sandbox]],
    record: Record,
    patch: str,
    reverse: bool = False,
    added: Mapping[str, str] | None = None,
) -> bytes:
    """Return the repository with a patch, "" for none, and with the tests, as a tar archive without `.git`.

    added: what is written behind the end of a file, by its path; of files that are there. Raises `EnvironmentFailure`
    where that cannot be made.
    """
    box = await fresh(3 * len(patch))
    try:
        with own():
            if patch:
                await _apply(box, patch, reverse)
            await _restore(box, record)
            for path, text in (added or {}).items():
                append = ["bash", "-c", '[ ! -f "$0" ] || cat >> "$0"', path]
                await _must(box, append, text.encode(), "its control")
            pack = ["tar", "-cf", "-", "--exclude=./.git", "."]
            packed = await box.exec(pack, timeout_s=COPY_S, max_output_bytes=LEFT_BYTES)
    finally:
        await box.stop()
    if not packed.ok or packed.truncated:
        raise EnvironmentFailure(f"swe: the repository cannot be packed: {packed.stderr[-500:]!r}")
    return packed.stdout


async def judge_files(
    box: Sandbox, record: Record, files: bytes, timeout_s: float, env: Mapping[str, str]
) -> Outcome:
    """Unpack a tar archive into the empty work folder of a session, whose programs are not trusted, and run the tests
    there. env: further variables of the tests."""
    with own():
        unpacked = await box.exec(["tar", "-xpf", "-", "--no-same-owner"], stdin=files, timeout_s=COPY_S)
    if not unpacked.ok:
        return Outcome(Grade(False, 0.0), unpacked.stderr.decode("utf-8", "replace"), unpacked.returncode, {})
    return await _tests(box, record, timeout_s, env)


async def _apply(box: Sandbox, patch: str, reverse: bool) -> None:
    words = [
        "git",
        "-c",
        "safe.directory=*",
        "apply",
        "--whitespace=nowarn",
        *(["-R"] if reverse else []),
        "-",
    ]
    await _must(box, words, patch.encode(), "its patch")


async def _restore(box: Sandbox, record: Record) -> None:
    restored = sorted({*record.test_files(), *record.tests_patched()})
    files = {"restored": "".join(f"{path}\n" for path in restored).encode()}
    files["test.patch"] = record.test_patch.encode()
    await _must(box, ["mkdir", "-p", INPUT], b"", "its folders")
    await _must(box, ["tar", "-xf", "-", "-C", INPUT], archive(files), "its tests")
    await _must(box, ["bash", "-c", RESTORE], b"", "its tests")
    if record.expected:
        await _must(box, ["bash", "-c", r2e.PLACE], b"", "its tests")


async def _must(box: Sandbox, argv: list[str], stdin: bytes, what: str) -> None:
    result: ExecResult = await box.exec(argv, stdin=stdin, timeout_s=COPY_S)
    if not result.ok:
        reason = result.stderr.decode("utf-8", "replace")[-800:]
        raise EnvironmentFailure(f"swe: {what} cannot be put into the repository: {reason}")


async def _tests(
    box: Sandbox, record: Record, timeout_s: float, env: Mapping[str, str] | None = None
) -> Outcome:
    command = f"{record.test_command} {' '.join(map(shlex.quote, record.test_files()))} 2>&1"
    result = await box.exec(
        ["bash", "-c", command],
        timeout_s=timeout_s,
        max_output_bytes=OUTPUT_BYTES,
        env={**(env or {}), "HOME": "/tmp"},
    )
    output, status = result.text, result.returncode
    if result.timed_out or result.out_of_memory:
        return Outcome(Grade(False, 0.0), output, status or 137, {})
    return Outcome(grade(record, output, status), output, status, read(record, output))


def named(outcome: Outcome, record: Record) -> Outcome:
    """Return the same with the statuses of the record's own tests alone."""
    wanted = {*record.fail_to_pass, *record.pass_to_pass}
    kept = {test: outcome.statuses.get(test, "missing") for test in sorted(wanted)}
    return replace(outcome, statuses=kept)
