"""Our environments as a taskset of `verifiers.v1`: the whole module."""

from asyncrl.extensions.env_adapters.verifiers_taskset import AsyncrlHarness, AsyncrlTaskset

__all__ = ["AsyncrlHarness", "AsyncrlTaskset"]
