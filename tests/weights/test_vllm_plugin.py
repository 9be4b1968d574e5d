"""Which way the server starts vLLM's engine process."""

import os
from types import SimpleNamespace

import pytest

from asyncrl.weights.vllm_plugin import fork_engine_processes

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


class Platform:
    """The part of vLLM's CPU platform that chooses."""

    def check_and_update_config(self, vllm_config):
        os.environ[METHOD] = "spawn"


@pytest.mark.parametrize(
    ("threads", "method"),
    [("1", "fork"), ("2", "spawn"), (None, "spawn")],
)
def test_engine_processes_are_forked_where_no_thread_can_be_lost(monkeypatch, threads, method):
    monkeypatch.setenv(METHOD, "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if threads:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    platform = Platform()
    fork_engine_processes(platform)
    platform.check_and_update_config(SimpleNamespace())
    assert os.environ[METHOD] == method
