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


CACHES = (
    *("HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR"),
    "FLASHINFER_WORKSPACE_BASE",
)


@pytest.fixture
def no_caches(monkeypatch, tmp_path):
    for name in CACHES:
        # Set first, so that what the test sets itself is taken back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return monkeypatch


def test_libraries_cache_in_a_folder_of_the_users_where_the_home_cannot_be_written(no_caches, tmp_path):
    # vllm#10185, vllm#20127, llm-d-kv-cache#83
    no_caches.setenv("HOME", "/proc")
    machine.writable_caches()
    own = tmp_path / f"asyncrl-cache-{os.getuid()}"
    assert {name: os.environ.get(name) for name in CACHES} == {
        "HF_HOME": f"{own}/huggingface",
        "HF_DATASETS_CACHE": f"{own}/huggingface/datasets",
        "XDG_CACHE_HOME": None,
        "VLLM_CACHE_ROOT": f"{own}/vllm",
        "TRITON_CACHE_DIR": f"{own}/triton",
        "FLASHINFER_WORKSPACE_BASE": f"{own}/flashinfer",
    }
    assert own.stat().st_mode & 0o777 == 0o700


def test_models_are_still_read_from_a_hub_folder_that_is_read_only(no_caches, tmp_path):
    no_caches.setenv("HOME", str(tmp_path))
    no_caches.setenv("HF_HOME", "/proc/self")
    machine.writable_caches()
    assert os.environ["HF_HOME"] == "/proc/self"
    assert os.environ["HF_DATASETS_CACHE"].startswith(str(tmp_path))
    assert "TRITON_CACHE_DIR" not in os.environ


def test_a_home_that_can_be_written_is_used_and_stays_as_it_is(no_caches, tmp_path):
    no_caches.setenv("HOME", str(tmp_path))
    machine.writable_caches()
    assert not any(name in os.environ for name in CACHES) and list(tmp_path.iterdir()) == []


def test_a_folder_that_another_could_have_put_there_is_not_used(no_caches, tmp_path):
    (tmp_path / f"asyncrl-cache-{os.getuid()}").symlink_to("/tmp")
    no_caches.setenv("HOME", "/proc")
    machine.writable_caches()
    assert f"asyncrl-cache-{os.getuid()}/" not in os.environ["HF_HOME"]
