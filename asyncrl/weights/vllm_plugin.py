"""Entry point of the vLLM plugin (`vllm.general_plugins`); vLLM calls `register` in each of its processes.

It adds the weight-transfer backend `shared_file` and what keeps the KV cache across an update (`vllm_prefixes`). It
mends the CPU backend: layers compute from live weights, MLA is rotated right (`vllm_cpu`), float32 layers are
normalised by kernels (`vllm_norms`). Extensions change what their `engine_processes` say.

In servers that asyncrl starts, every process also ends with its parent: otherwise vLLM's engine process and its
memory would outlive a server that was killed. On CPU that process is forked instead of spawned where possible, and
models are inspected in place: importing all of vLLM a second time takes half of an engine's start-up time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from asyncrl.extensions.table import rows
from asyncrl.kv_blocks import on_x86
from asyncrl.process_hooks import die_with_parent
from asyncrl.weights.vllm_prefixes import add_to_engine_core

T = TypeVar("T")
BACKEND = "shared_file"
STARTED_BY_US = "ASYNCRL_BASE_VERSION"
"""Environment variable that `asyncrl serve engine` sets."""
WEIGHTS_DIR = "ASYNCRL_WEIGHTS_DIR"
"""Environment variable: this machine's folder of weights."""
MACHINES = "ASYNCRL_ENGINE_MACHINES"
"""Environment variable: over how many machines the engine is spread, where it is over several."""
MACHINE = "ASYNCRL_ENGINE_MACHINE"
"""Environment variable: which of them this one is; 0 has the server."""
RANKS_HERE = "ASYNCRL_ENGINE_RANKS_HERE"
"""Environment variable: how many of its ranks are on this machine."""
STAGES = "ASYNCRL_ENGINE_STAGES"
"""Environment variable: into how many stages its layers are split, where they are."""
ENGINE_URL = "ASYNCRL_ENGINE_URL"
"""Environment variable: the server's address, as others are told it."""


def register() -> None:
    """Register the backend once, make CPU linear layers updatable, and end with the parent process."""
    if STARTED_BY_US in os.environ:
        die_with_parent()
        os.register_at_fork(after_in_child=_begin_in_child)
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.platforms import current_platform

    # Before the CPU's runner takes over what these change.
    for row in rows("engine_processes"):
        if row.wanted(os.environ):
            row.load()()
    if current_platform.is_cpu():
        from asyncrl.weights.vllm_cpu import (
            allow_short_blocks,
            cache_no_states,
            keep_weights_live,
            rotate_heads_by_torch,
            sleep_between_messages,
        )
        from asyncrl.weights.vllm_norms import normalise_by_kernels

        keep_weights_live()
        rotate_heads_by_torch()
        normalise_by_kernels(current_platform)
        sleep_between_messages()
        cache_no_states()
        if on_x86():
            allow_short_blocks()
        if ranks_here := os.environ.get(RANKS_HERE):
            # By these vLLM tells which ranks are on one machine. A CPU would be one device.
            count = int(ranks_here)
            setattr(current_platform, "device_count", lambda: count)  # noqa: B010 - mypy forbids to assign it
            from asyncrl.weights.vllm_cpu import leave_rendezvous

            leave_rendezvous()
        if STAGES in os.environ:
            from asyncrl.weights.vllm_cpu import make_room_between_stages

            make_room_between_stages()
        if STARTED_BY_US in os.environ:
            fork_engine_processes(current_platform)
            inspect_models_in_place()
    add_to_engine_core()
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "asyncrl.weights.vllm_backend", "SharedFileEngine"
        )


def fork_engine_processes(platform: Any) -> None:
    """Undo the CPU platform's choice of "spawn": each process would import vLLM anew.

    With more than one OpenMP thread it stays: a fork lacks its parent's threads and would wait for them forever.
    """
    choose = platform.check_and_update_config

    def choose_fork(vllm_config: Any) -> None:
        choose(vllm_config)
        if os.environ.get("OMP_NUM_THREADS") == "1":
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    platform.check_and_update_config = choose_fork


def inspect_models_in_place() -> None:
    """Look at a model's class in this process, whose fork needs it anyway.

    vLLM imports it in another one where it has not remembered what it is like, lest this one initialises CUDA: the
    first engine of a machine would take twice as long to start.
    """
    from vllm.model_executor.models import registry

    def here(fn: Callable[[], T]) -> T:
        return fn()

    registry._run_in_subprocess = here


def _begin_in_child() -> None:
    die_with_parent()
    # Otherwise a signal to the child would wake its parent's event loop.
    signal.set_wakeup_fd(-1)
