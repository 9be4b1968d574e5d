"""vLLM's server, started in two thirds of the time: `python -m asyncrl.weights.vllm_api_server ARGUMENT...`.

Importing vLLM creates a million objects that stay. With Python's default thresholds the garbage collector scans them
again and again, which takes a third of the import. vLLM's engine process, which is forked from the server, would scan
all of them three times more.
"""

from __future__ import annotations

import gc

from asyncrl.http_limits import use_for_all_servers
from asyncrl.process_hooks import collecting_no_garbage

MANY_OBJECTS = 100_000
"""New objects between two collections, until vLLM serves and freezes those that exist."""

if __name__ == "__main__":
    with collecting_no_garbage():
        # The server imports the engine only when it makes one.
        import vllm.v1.engine.async_llm
        import vllm.v1.engine.core  # noqa: F401
        from vllm.entrypoints.launchers.api_server.entry import main
    use_for_all_servers()
    gc.set_threshold(MANY_OBJECTS)
    main()
