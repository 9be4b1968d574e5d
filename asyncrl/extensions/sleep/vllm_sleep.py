"""Engines that sleep while the trainer works: vLLM's own routes for it (`asyncrl.extensions.sleep.switch`)."""

from __future__ import annotations

from asyncrl.weights.vllm_hooks import EngineHook


class Sleep(EngineHook):
    """Opens them to trainer and run."""

    vllm_paths = frozenset({"/sleep", "/wake_up", "/is_sleeping"})
