"""Records of issues, as SWE-bench, SWE-rebench, SWE-smith and R2E-Gym publish them, and the image of each.

A record says what the repository was (a git bundle, or an image that holds it), what its tests were, and which of them
must pass then (FAIL_TO_PASS) and still (PASS_TO_PASS); one of R2E-Gym (`r2e`) says what becomes of every test.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from asyncrl.envs.swe.r2e import HIDE, KEEP, expected_statuses, gold_patch, instruction, is_r2e, name
from asyncrl.errors import ConfigError
from asyncrl.extensions.sandbox_images.dockerfile import (
    PATH,
    Context,
    CopyStep,
    FolderStep,
    Recipe,
    RunStep,
    Step,
)
from asyncrl.textfile import json_records

WORKDIR = "/testbed"
"""Where images of such records keep their repository."""
IMAGE = "swe"
"""The name in `bases` for a record that names no image."""
TEST_COMMAND = "python3 -m pytest -rA --tb=no -p no:cacheprovider"
BUNDLE, FAULT = "repository.bundle", "fault.patch"
ENV = (("PATH", PATH), ("PYTHONDONTWRITEBYTECODE", "1"))
GIT = "git -c user.name=task -c user.email=task@localhost -c safe.directory='*'"
_PATCHED = re.compile(r"^(?:---|\+\+\+) (?:[ab]/)?([^\t\n]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    instruction: str
    image: str
    """That holds the repository; "" where `bundle` does."""
    bundle: Path | None
    base_commit: str
    """"" for what the image has checked out, or the bundle's HEAD."""
    fault: str
    """A patch that makes the fault, for records of SWE-smith; else ""."""
    gold: str
    """The patch that repairs it; "" where `fault` taken back does."""
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    install: tuple[str, ...]
    """Commands that make the repository ready for its tests."""
    test_command: str
    expected: tuple[tuple[str, str], ...] = ()
    """Of R2E-Gym: what must become of each test, all of which the image holds; else none."""

    def test_files(self) -> tuple[str, ...]:
        """Return the files whose tests decide, by their path in the repository."""
        named = {test.split("::")[0] for test in (*self.fail_to_pass, *self.pass_to_pass) if "::" in test}
        return tuple(sorted(named or {path for path in self.tests_patched() if path.endswith(".py")}))

    def tests_patched(self) -> tuple[str, ...]:
        """Return the files that the tests' patch makes, changes or removes."""
        return tuple(sorted(set(_PATCHED.findall(self.test_patch)) - {"/dev/null"}))

    def recipe(self, for_judge: bool = False, installed: bool = True) -> Recipe:
        """Return how the repository is made ready: at its base commit, with its fault, and installed or not. The tests
        that an image of R2E-Gym holds are in that of the judge alone."""
        files: dict[str, bytes] = {}
        steps: list[Step] = []
        if self.bundle is not None:
            files[BUNDLE] = _bundle_bytes(self.bundle, self.bundle.stat().st_mtime_ns)
            steps += [CopyStep(((f"/tmp/{BUNDLE}", BUNDLE),)), FolderStep(WORKDIR)]
            steps.append(_run(f"{GIT} clone -q --no-checkout /tmp/{BUNDLE} . && {GIT} remote remove origin"))
        if self.base_commit or self.bundle is not None:
            steps.append(_run(f"{GIT} checkout -q -f -B main {shlex.quote(self.base_commit or 'HEAD')}"))
        if self.fault:
            files[FAULT] = self.fault.encode()
            steps.append(CopyStep(((f"/tmp/{FAULT}", FAULT),)))
            # In one commit without a parent: the repository before it is the solution.
            start = f"{GIT} checkout -q --orphan start && {GIT} add -A && {GIT} commit -q -m start"
            steps.append(_run(f"{GIT} apply /tmp/{FAULT} && {start}"))
        last = ((KEEP if for_judge else HIDE),) if self.expected else ()
        commands = (*(self.install if installed else ()), *last)
        steps += [_run(command) for command in commands]
        said = json.dumps([self.image, self.base_commit, bool(self.fault), commands])
        context = Context(files)
        engine_text = f"FROM {self.image}\n" if self.image else ""
        return Recipe(self.image or IMAGE, tuple(steps), ENV, WORKDIR, context, said, engine_text)


@lru_cache(maxsize=2)
def _bundle_bytes(path: Path, changed_ns: int) -> bytes:
    """Return a bundle, which many records share."""
    return path.read_bytes()


def _run(command: str) -> RunStep:
    env = (*ENV, ("HOME", "/root"))
    return RunStep(("/bin/bash", "-c", command), env, WORKDIR, command)


@lru_cache(maxsize=8)
def read_records(path: str, bundles: str = "") -> Mapping[str, Record]:
    """Return the records of a file of JSON lines by name, in its order.

    bundles: the folder of git bundles; a record finds `OWNER__NAME.bundle` there, unless its field `bundle` names one.
    Raises `ConfigError` naming the line and what is missing or not supported.
    """
    found: dict[str, Record] = {}
    folder = Path(bundles) if bundles else Path(path).parent
    for number, fields in json_records(path, "env.config.records"):
        try:
            record = _record(fields, folder)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"env.config.records: {path}, line {number}: {_why(error)}") from error
        found[record.name] = record
    if not found:
        raise ConfigError(f"env.config.records: {path}: holds no record")
    return found


def _why(error: Exception) -> str:
    return f"field {error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def _record(fields: Mapping[str, Any], folder: Path) -> Record:
    if is_r2e(fields):
        return _r2e_record(fields, folder)
    smith = "base_commit" not in fields and "test_patch" not in fields
    install = fields.get("install_config") or {}
    parser = str(install.get("log_parser") or "pytest")
    if "pytest" not in parser:
        raise ValueError(f"log_parser {parser!r}: only pytest's output is read")
    image = str(fields.get("image_name") or fields.get("docker_image") or "")
    bundle = _bundle(fields, folder) if not image or fields.get("bundle") else None
    fail_to_pass = _names(fields["FAIL_TO_PASS"])
    if not fail_to_pass:
        raise ValueError("FAIL_TO_PASS names no test, so that nothing would have to be repaired")
    return Record(
        str(fields["instance_id"]),
        str(fields["problem_statement"]),
        image,
        bundle,
        "" if smith else str(fields["base_commit"]),
        str(fields["patch"]) if smith else "",
        "" if smith else str(fields["patch"]),
        str(fields.get("test_patch") or ""),
        fail_to_pass,
        _names(fields.get("PASS_TO_PASS") or []),
        _commands(install.get("pre_install")) + _commands(install.get("install")),
        str(_first(install.get("test_cmd")) or TEST_COMMAND),
    )


def _r2e_record(fields: Mapping[str, Any], folder: Path) -> Record:
    install = fields.get("install_config") or {}
    return Record(
        name(fields),
        instruction(fields),
        str(fields["docker_image"]),
        _bundle(fields, folder) if fields.get("bundle") else None,
        str(fields.get("base_commit") or ""),
        "",
        gold_patch(fields["parsed_commit_content"]),
        "",
        (),
        (),
        _commands(install.get("install")),
        "bash run_tests.sh",
        expected_statuses(fields["expected_output_json"]),
    )


def _bundle(fields: Mapping[str, Any], folder: Path) -> Path:
    name = str(fields.get("bundle") or f"{fields['repo'].replace('/', '__')}.bundle")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"bundle {name!r} is not in {folder}")
    if not path.is_file():
        raise ValueError(
            f"{path} is missing: make it with 'git bundle create FILE --all' in a clone of {fields['repo']!r}"
        )
    return path


def _names(value: Any) -> tuple[str, ...]:
    """Return names of tests, given as a list or as one written in JSON."""
    names = json.loads(value) if isinstance(value, str) else list(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"names of tests must be texts, got {names!r}")
    return tuple(names)


def _commands(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else tuple(value or ())


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value
