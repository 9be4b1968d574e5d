"""What a process may use of its machine: containers show all of it, and allow less."""

import getpass
import os
import pwd
import subprocess
import sys

import pytest

from asyncrl import machine

GIB = 2**30


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """Write the files of a cgroup: `cgroup("0::/a", {"a/cpu.max": "400000 100000"})`."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(96)))

    def make(own, files):
        (tmp_path / "own").write_text(own + "\n")
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    return make


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        # ollama#17916, vllm#34462, pytorch/serve#3150: four CPUs of many, by cgroup v2.
        ("0::/", {"cpu.max": "400000 100000"}, 4),
        ("0::/", {"cpu.max": "max 100000"}, 96),
        # lilbee#660: 7.65 of 96, by v1; one thread more than the quota would be throttled.
        (
            "4:cpu,cpuacct:/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "765000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            7,
        ),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 96),
        # The group above allows less.
        ("0::/pod/box", {"pod/cpu.max": "200000 100000", "pod/box/cpu.max": "800000 100000"}, 2),
        # The path is that on the host.
        ("0::/kubepods/pod1", {"cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "nonsense"}, 96),
        ("0::/", {}, 96),
        ("", {}, 96),
    ],
)
def test_no_more_cpus_are_used_than_the_quota_allows(cgroup, own, files, cpus):
    cgroup(own, files)
    assert machine.usable_cpus() == cpus


def test_no_more_cpus_are_used_than_this_process_may_run_on(cgroup, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    cgroup("0::/", {"cpu.max": "800000 100000"})
    assert machine.usable_cpus() == 3


@pytest.mark.parametrize(
    ("own", "files", "gib"),
    [
        ("0::/", {"memory.max": str(8 * GIB)}, 8),
        ("0::/", {"memory.max": "max"}, 64),
        ("9:memory:/", {"memory/memory.limit_in_bytes": str(16 * GIB)}, 16),
        ("9:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 64),
        ("0::/a", {"memory.max": str(4 * GIB), "a/memory.max": str(8 * GIB)}, 4),
    ],
)
def test_no_more_memory_is_counted_on_than_the_group_may_have(cgroup, own, files, gib):
    cgroup(own, files)
    assert machine.usable_memory_bytes(64 * GIB) == gib * GIB


def test_a_user_id_without_an_account_has_a_name(monkeypatch):
    """vllm#44548, pytorch#160667: `getpwuid(): uid not found` while torch was imported, in containers."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in machine.USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((KeyError, OSError)):
        getpass.getuser()
    machine.name_user()
    assert getpass.getuser() == f"uid{os.getuid()}"


def test_an_account_and_a_name_of_ones_own_stay(monkeypatch):
    for name in machine.USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    machine.name_user()
    assert "USER" not in os.environ, "this user id has an account"
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: None)
    machine.name_user()
    assert (getpass.getuser(), "USER" in os.environ) == ("ada", False)


LIMITS = """
import resource, sys
from asyncrl.machine import open_files
hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
print(open_files(), resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))
"""


def test_the_limit_of_open_files_is_raised_to_what_is_allowed():
    """verl#2047, NeMo-RL#988: runs crashed under the 1024 that a shell gives."""
    done = subprocess.run([sys.executable, "-c", LIMITS, "512"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["512", "True"]


def test_python_m_asyncrl_does_not_import_a_users_files_for_the_standard_librarys(tmp_path):
    """cpython#95893, numpy#16198."""
    for name in ("token", "random", "copy", "calendar", "types", "argparse", "logging"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the user')\n")
    done = subprocess.run(
        [sys.executable, "-m", "asyncrl", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
