"""Freed memory stays in the process once asked for."""

import platform
import subprocess
import sys

import pytest

CHURN = """
import resource, sys
from asyncrl.data.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    bytes(bytearray(1_000_000))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_large_buffers_are_not_faulted_in_anew():
    faults = {}
    for mode in ("keep", "default"):
        done = subprocess.run([sys.executable, "-c", CHURN, mode], capture_output=True, text=True, check=True)
        faults[mode] = int(done.stdout)
    assert faults["keep"] < 1000, "one pass over two buffers is about 500 pages"
    assert faults["keep"] < faults["default"]
