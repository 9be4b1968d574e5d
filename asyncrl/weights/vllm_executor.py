"""Runs the CPU worker inside vLLM's engine process.

By default vLLM's CPU platform runs the worker in a separate process, and the engine process spins on a shared-memory
queue while it waits, which costs a whole core. The separate process exists only so that OpenMP's environment can be
set before it starts; `services.engine` sets it for the engine process instead.
"""

from __future__ import annotations

from vllm.v1.executor.uniproc_executor import UniProcExecutor


class InProcessExecutor(UniProcExecutor):
    """`UniProcExecutor` under its own name: the CPU platform replaces the plain one by "mp"."""
