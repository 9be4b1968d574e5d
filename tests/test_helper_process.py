"""The child process that judges: it answers whatever its parent has open."""

import os
import resource
import sys

import pytest

from asyncrl.helper_process import HelperProcess

ECHO = "print('ready', flush=True)\nfor line in __import__('sys').stdin: print(line.strip(), flush=True)"


def test_it_answers_a_process_with_more_than_a_thousand_files_open():
    """`select` refuses descriptors from 1024 on."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2048:
        pytest.skip("this machine allows no more than 2048 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    helper = HelperProcess([sys.executable, "-c", ECHO], "the helper did not start")
    try:
        assert helper.ask({"a": 1}, 60.0) == '{"a": 1}'
    finally:
        helper.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
