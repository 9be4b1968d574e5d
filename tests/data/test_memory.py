"""Freed memory stays in the process once asked for, until it is returned."""

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

BURST = """
import resource
from pathlib import Path
from asyncrl.data.memory import keep_freed_memory, return_freed_memory
def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
assert keep_freed_memory()
before = resident_mib()
burst = [bytearray(1_600_000) for _ in range(16)]
# What stays is above what goes.
kept = bytearray(100_000)
del burst
left = resident_mib() - before
assert return_freed_memory()
print(left, resident_mib() - before)
"""

THREADS = """
import ctypes, sys, threading
from asyncrl.data.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
together = threading.Barrier(4)
def use():
    together.wait()
    kept.append(bytearray(300))
    kept.append(bytearray(100_000))
kept, threads = [], [threading.Thread(target=use) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
c = ctypes.CDLL(None)
c.malloc_info(0, ctypes.c_void_p.in_dll(c, "stdout"))
c.fflush(None)
"""


def output(script, mode):
    return subprocess.run(
        [sys.executable, "-c", script, mode], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_large_buffers_are_not_faulted_in_anew():
    faults = {}
    for mode in ("keep", "default"):
        faults[mode] = int(output(CHURN, mode))
    assert faults["keep"] < 1000, "one pass over two buffers is about 500 pages"
    assert faults["keep"] < faults["default"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_threads_share_what_was_freed():
    assert output(THREADS, "keep").count("<heap nr=") == 1
    assert output(THREADS, "default").count("<heap nr=") > 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the call is glibc's")
def test_what_a_burst_has_left_is_returned():
    left, after = map(float, output(BURST, "").split())
    # 25.6 MB, and a page or two of other things.
    assert left > 24
    assert after < 2
