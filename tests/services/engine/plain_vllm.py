"""vLLM's own server without anything of ours, but that its engine process is forked.

    python -m tests.services.engine.plain_vllm ARGUMENT...

On a CPU vLLM spawns that process, which imports all of vLLM anew.
"""

import runpy

from vllm.platforms import current_platform

from asyncrl.weights.vllm_plugin import fork_engine_processes

if __name__ == "__main__":
    fork_engine_processes(current_platform)
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
