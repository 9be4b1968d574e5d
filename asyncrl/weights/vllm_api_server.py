"""vLLM's server, started in three quarters of the time: `python -m asyncrl.weights.vllm_api_server ARGUMENT...`.

Importing vLLM creates a million objects that stay. With Python's default thresholds the garbage collector scans them
again and again, which takes a quarter of the import. vLLM freezes all existing objects once it serves.
"""

from __future__ import annotations

import gc
import runpy

MANY_OBJECTS = 100_000
"""New objects between two collections."""

if __name__ == "__main__":
    gc.set_threshold(MANY_OBJECTS)
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
