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
