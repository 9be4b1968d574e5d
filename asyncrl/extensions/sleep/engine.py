"""What an engine is started with that gives up its GPU memory and takes it back (vLLM's sleep mode)."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.gpus import on_cpu
from asyncrl.services.engine.additions import Addition


def sleeping(config: Config, publishes: bool) -> Addition:
    """Return what has vLLM be able to sleep."""
    # On a CPU vLLM refuses the option; its routes answer all the same, and release nothing.
    return Addition(() if on_cpu() else ("--enable-sleep-mode",))
