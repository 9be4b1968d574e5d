"""Why a process died, read from real kinds of logs."""

import subprocess
import sys

import pytest

from asyncrl.launch.processes.death import lacks_memory, last_error

VLLM = """\
(APIServer pid=7) INFO 11-23 01:00:00 [api_server.py:12] starting
(EngineCore pid=9) ERROR 11-23 01:00:01 [core.py:700] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-23 01:00:01 [core.py:700]   File "core.py", line 1, in run
(EngineCore pid=9) ERROR 11-23 01:00:01 [core.py:700]     allocate()
(EngineCore pid=9) ERROR 11-23 01:00:01 [core.py:700] ValueError: No available memory for the cache blocks.
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "api_server.py", line 3, in main
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.
asyncrl: engine: vLLM exited with code 1 while starting; its log says why
"""


def log_of(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stderr


def test_the_line_that_ends_a_traceback_is_the_error():
    assert last_error("noise\n" + log_of("print(1); {}['a']") + "leaving\n") == "KeyError: 'a'"


RANK = """\
trainer: rank 0 of 2 is ready
[rank1]: Traceback (most recent call last):
[rank1]:   File "<frozen runpy>", line 198, in _run_module_as_main
[rank1]:     raise SystemExit(main())
[rank1]:                      ^^^^^^
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def test_the_error_of_a_rank_is_read_through_the_prefix_that_torch_gives_it():
    assert last_error(RANK) == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert lacks_memory(last_error(RANK))


def test_a_group_of_errors_is_reported_by_its_members():
    code = "raise ExceptionGroup('unhandled errors', [OSError(28, 'No space left on device')])"
    assert last_error(log_of(code)) == "OSError: [Errno 28] No space left on device"


def test_what_asyncrl_says_before_it_exits_is_the_error():
    assert last_error("Traceback (most recent call last):\n  x\nKeyError: 1\nasyncrl: train.x: wrong\n") == (
        "train.x: wrong"
    )


def test_an_engines_death_is_explained_by_the_root_cause_and_not_by_errors_that_point_to_it():
    assert last_error(VLLM) == "ValueError: No available memory for the cache blocks."


@pytest.mark.parametrize(("log", "expected"), [("", ""), ("one\n\n two \n\n", "two")])
def test_a_log_without_an_error_is_explained_by_its_last_line(log, expected):
    assert last_error(log) == expected


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        ("MemoryError", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
            True,
        ),
        ("OSError: [Errno 12] Cannot allocate memory", True),
        ("ValueError: No available memory for the cache blocks.", True),
        ("ValueError: the memory of a goldfish", False),
        ("", False),
    ],
)
def test_a_lack_of_memory_is_recognised(error, lacks):
    assert lacks_memory(error) is lacks
