"""The attack suite: that the backends hold, and that every attack would notice if one did not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from asyncrl.extensions.sandbox_attacks import check
from asyncrl.extensions.sandbox_attacks.attacks import ATTACKS
from asyncrl.sandbox.backends import choose, probe
from tests.sandbox.conftest import run_async
from tests.sandbox.sandbox_naive import NaiveSandbox

NAIVE = "tests.sandbox.sandbox_naive:NaiveSandbox"
# As in a container whose engine forbids namespaces and mounts, which is what most do.
CONTAINED = """
import sys
from asyncrl.extensions.sandbox_attacks import check
from asyncrl.sandbox.jail import kernel, seccomp
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
kernel.install_filter(seccomp.build_filter("network"))
sys.exit(check.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["bubblewrap", "zygote", "nsjail", "landlock", "gvisor"])
def test_a_local_backend_holds_and_the_default_one_over_a_thousand_runs(backend):
    found = run_async(lambda: probe(backend))
    if not found.works:
        pytest.skip(f"{backend}: {found.reason}")
    default = run_async(lambda: choose("auto")).backend
    # A zygote forks all programs, so more can pile up in it than elsewhere.
    runs = 1000 if backend == default else {"zygote": 100}.get(backend, 25)
    findings = run_async(lambda: check.attack_backend(backend, runs=runs), timeout_s=900)
    bad = [(f.attack.name, f.status, f.details) for f in findings if f.status != "held"]
    assert not bad
    assert len(findings) >= 24


@pytest.mark.slow
def test_every_attack_succeeds_against_a_backend_that_makes_every_mistake():
    async def body():
        try:
            return await check.attack_backend(NAIVE, runs=20)
        finally:
            await NaiveSandbox.clean_up()

    findings = run_async(body, timeout_s=300)
    missed = [(f.attack.name, f.status, f.details) for f in findings if f.status != "leaked"]
    assert not missed
    assert len(findings) == len(ATTACKS)


def test_the_command_fails_on_plain_subprocess_and_says_why(capsys):
    status = check.main(["--backend", "subprocess", "--only", "host files", "--only", "writes outside"])
    printed = capsys.readouterr().out
    assert status == 1
    assert "leaked  host files" in printed
    assert "0 held, 2 did not" in printed


def test_the_command_passes_on_the_default_backend_and_prints_json(capsys):
    assert check.main(["--only", "host files", "--only", "system calls", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["backend"] in ("bubblewrap", "nsjail", "landlock")
    assert [row["status"] for row in report["attacks"]] == ["held", "held"]


@pytest.mark.parametrize("backend", ["bubblewrap", "zygote", "nsjail", "landlock"])
def test_memory_that_the_kernel_holds_for_a_program_is_bounded(backend):
    if not (found := run_async(lambda: probe(backend))).works:
        pytest.skip(f"{backend}: {found.reason}")
    findings = run_async(lambda: check.attack_backend(backend, ["memory of", "kernel objects"]))
    assert [(f.attack.name, f.status) for f in findings] == [
        ("memory of semaphores", "held"),
        ("memory of socket buffers", "held"),
        ("memory of page tables", "held"),
        ("kernel objects of other sessions", "held"),
    ], findings


def test_the_command_names_an_unknown_backend(capsys):
    assert check.main(["--backend", "chroot"]) == 2
    assert "chroot" in capsys.readouterr().err


def test_without_namespaces_auto_falls_back_to_landlock_and_holds():
    if not os.path.isdir("/sys/kernel/security") and os.uname().release < "5.13":
        pytest.skip("no Landlock in this kernel")
    names = [
        "network",
        "host files",
        "environment",
        "inherited",
        "fork bomb",
        "many processes",
        "writes outside",
    ]
    command = [
        sys.executable,
        "-c",
        CONTAINED,
        "--json",
        *(part for name in names for part in ("--only", name)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["backend"] == "landlock"
    assert len(report["attacks"]) == len(names)
