"""Environment set-up, as EnvBench asks for it: a bash script after which the tests of a repository run.

The script is run in a fresh image of the repository; the tests then run in a session in which nothing of it runs any
more. What it has installed cannot be trusted, so that tests which must fail are run, too: those of FAIL_TO_PASS without
the repair, which the agent has not seen, and those of PASS_TO_PASS with an error in front of each. Every file of the
repository is put back before.
"""

from __future__ import annotations

import asyncio
import io
import posixpath
import secrets
import shlex
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from asyncrl.envs.swe.grade import is_in
from asyncrl.envs.swe.judge import Outcome, judge_files, tree
from asyncrl.envs.swe.record import WORKDIR, Record
from asyncrl.errors import InputError
from asyncrl.extensions.sandbox_images.jail import BuildLimits
from asyncrl.extensions.sandbox_images.script import ScriptRun, script_run
from asyncrl.extensions.sandbox_images.store import Image
from asyncrl.sandbox.protocol import MIB, Sandbox, SandboxSpec

SCRIPT = "bootstrap_script.sh"
"""As EnvBench calls it."""
SCRIPT_BYTES = MIB
INSTRUCTION = f"""The repository in {WORKDIR} is not set up: what its tests need is not installed.

Write a bash script {WORKDIR}/{SCRIPT} that sets it up, so that its tests run with: {{command}}

The script is sourced as root in {WORKDIR}, in a fresh copy of this machine with the repository as it is now; of all
that you leave, only the script is taken. It must end with status 0. Variables that it exports, such as PATH, hold for
the tests. Files of the repository are then put back and some will be changed, so install it in editable form.
"""
SETTINGS = frozenset(
    (
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "pyproject.toml",
        "setup.cfg",
        "tox.ini",
    )
)
"""Files that steer pytest."""
PACKAGES = frozenset(("site-packages", "dist-packages"))
CACHE = "__pycache__"
ERROR = """

import pytest as m{name}


@m{name}.fixture(autouse=True)
def f{name}(request):
    found = request.node.nodeid.partition("::")[2]
    if found in {whole!r} or found.startswith({cut!r}):
        raise ModuleNotFoundError("No module named 'm{name}'", name="m{name}")
"""
JUST_PASSED = ("PASSED",)
"""In the control: a test that is marked to be skipped or to fail ends so with an error, too."""
FAILED, ENDED = {"script_ok": 0.0}, {"script_ok": 1.0}
"""Components."""
Fresh = Callable[[int], Awaitable[Sandbox]]


@dataclass(frozen=True, slots=True)
class Judged:
    reward: float
    share: float
    """Of the record's tests, those that pass."""
    output: str
    components: Mapping[str, float]


def instruction(record: Record) -> str:
    return INSTRUCTION.format(command=record.test_command)


def check_setup(record: Record) -> None:
    """Raise `ValueError` for a record whose image has been set up, or that does not say how that is done."""
    if record.expected:
        raise ValueError(
            f'record {record.name!r} is one of R2E-Gym, whose image is set up; take work = "repair"'
        )
    if not record.install:
        raise ValueError(
            f"record {record.name!r} has no pre_install and no install in its install_config, so that it is not known "
            'to be missing anything; take work = "repair"'
        )


def gold_script(record: Record) -> str:
    """Return the script that does what the record's own install commands do."""
    lines = [f"bash -c {shlex.quote(command)}" for command in record.install]
    return "\n".join(["set -e", *lines, ""])


async def script_left(box: Sandbox) -> bytes | None:
    """Return the script that the agent has left; None for none, one that is too long, or what is no file."""
    try:
        script = await box.read(SCRIPT, SCRIPT_BYTES)
    except InputError:
        return None
    return script if script.strip() else None


async def judge_script(
    image: Image,
    limits: BuildLimits,
    fresh: Fresh,
    open_box: Callable[[SandboxSpec], Awaitable[Sandbox]],
    plain: SandboxSpec,
    record: Record,
    script: bytes | None,
    timeout_s: float,
) -> Judged:
    """Run a script on an image of the repository, and then its tests, `timeout_s` for each of up to two runs.

    fresh: opens a session with the image. open_box, plain: opens a session of a spec, made from this one. Whatever
    the script does is its own: only `EnvironmentFailure` and `InfrastructureError` for what it has no part in.
    """
    if script is None:
        return Judged(0.0, 0.0, f"no {SCRIPT} is left", FAILED)
    async with script_run(image, SCRIPT, script, limits) as ran:
        if ran.problem:
            return Judged(0.0, 0.0, f"the script failed: {ran.problem}\n{ran.output}", FAILED)
        patch, reverse = (record.gold, False) if record.gold else (record.fault, True)
        base = await asyncio.to_thread(image.work.read_bytes)

        async def tests(right: bytes) -> Outcome | None:
            try:
                files = await asyncio.to_thread(merged, ran.left, base, right)
            except (tarfile.TarError, ValueError, OSError, EOFError):
                # The archive is of the script's own tar.
                return None
            box = await open_box(_spec(plain, ran, len(files)))
            try:
                return await judge_files(box, record, files, timeout_s, ran.variables)
            finally:
                await box.stop()

        repaired = await tests(await tree(fresh, record, patch, reverse))
        if repaired is None:
            return Judged(0.0, 0.0, "what the script left cannot be read", FAILED)
        share = repaired.grade.share
        if not repaired.grade.resolved:
            return Judged(0.0, share, repaired.output, ENDED)
        control = await tests(await tree(fresh, record, "", added=errors(record)))
        assert control is not None
        failing = [*record.fail_to_pass, *(test for test in record.pass_to_pass if _gets_error(test))]
        told = [test for test in failing if is_in(test, control.statuses, JUST_PASSED)]
        if told:
            output = f"these pass where they must fail: {', '.join(told[:3])}\n{control.output}"
            return Judged(0.0, share, output, {**ENDED, "control_failed": 1.0})
        return Judged(1.0, share, repaired.output, {**ENDED, "control_failed": 0.0})


def errors(record: Record) -> dict[str, str]:
    """Return what makes the tests of PASS_TO_PASS fail as if a module were missing, by the file that it is added to."""
    by_file: dict[str, list[str]] = {}
    for test in record.pass_to_pass:
        if _gets_error(test):
            path, _, name = test.partition("::")
            by_file.setdefault(path, []).append(name)
    return {
        path: ERROR.format(
            name=secrets.token_hex(8),
            whole=[name for name in names if not _is_cut(name)],
            cut=tuple(name for name in names if _is_cut(name)),
        )
        for path, names in by_file.items()
    }


def _gets_error(test: str) -> bool:
    return test.partition("::")[0].endswith(".py") and "::" in test


def _is_cut(name: str) -> bool:
    """Whether a data set has cut a name within its parameters."""
    return name.count("[") > name.count("]")


def _spec(plain: SandboxSpec, ran: ScriptRun, files_bytes: int) -> SandboxSpec:
    assert plain.limits is not None
    room = replace(plain.limits, disk_bytes=plain.limits.disk_bytes + 3 * files_bytes)
    return replace(plain, root=ran.root, limits=room)


class _Member(tarfile.TarInfo):
    """Refuses sizes below 0, with which older versions of tarfile read a header again and again."""

    def _block(self, count: int) -> int:
        if count < 0:
            raise ValueError("a size in the archive is below 0")
        return super()._block(count)  # type: ignore[misc, no-any-return]


def merged(left: bytes, base: bytes, right: bytes) -> bytes:
    """Return the files of the tar archive `right`, and beside them what a script has left that is no file of the
    repository: neither one of `right` or `base`, nor one that steers its tests.

    Raises `tarfile.TarError`, `ValueError`, `OSError` or `EOFError` where `left` is no such archive.
    """
    known = {name: member for name, member in _members(base).items() if not name.startswith(".git/")}
    wanted = _members(right)
    files = {name for name, member in {**known, **wanted}.items() if not member.isdir()}
    folders = {name for name, member in wanted.items() if member.isdir()}
    out = io.BytesIO()
    kept: dict[str, bool] = {}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as packed:
        with tarfile.open(fileobj=io.BytesIO(left), mode="r:", tarinfo=_Member) as source:
            for member in source:
                name = posixpath.normpath(member.name)
                if not _is_new(name, member, files, folders, kept):
                    continue
                kept[name] = member.issym()
                packed.addfile(member, source.extractfile(member) if member.isreg() else None)
        with tarfile.open(fileobj=io.BytesIO(right)) as source:
            for member in source:
                packed.addfile(member, source.extractfile(member) if member.isreg() else None)
    return out.getvalue()


def _members(packed: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return {posixpath.normpath(member.name): member for member in tar}


def _is_new(
    name: str, member: tarfile.TarInfo, files: set[str], folders: set[str], kept: Mapping[str, bool]
) -> bool:
    """Return whether what a script has left stays. files, folders: of the repository. kept: what stays of the
    members before, and whether that is a link."""
    parts = name.split("/")
    if name.startswith(("/", "../", ".git/")) or name in (".", "..", ".git") or name in files:
        return False
    above = {"/".join(parts[:n]) for n in range(1, len(parts))}
    if above & files or any(kept.get(folder) for folder in above) or (name in folders and not member.isdir()):
        return False
    if member.islnk():
        # A second name of a file must not be one of a file that is put back, nor of one that is left out.
        return kept.get(posixpath.normpath(member.linkname)) is False
    if member.issparse() or not (member.isreg() or member.isdir() or member.issym()):
        return False
    return bool(PACKAGES & set(parts)) or not (parts[-1] in SETTINGS or CACHE in parts)
