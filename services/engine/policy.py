"""The process behind `asyncrl serve policy`: vLLM's own OpenAI-compatible server, started right and behind a token."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from asyncrl.config_sections import ModelConfig
from asyncrl.credentials import Credentials
from asyncrl.services.engine.service import (
    EngineOptions,
    build_env,
    device_arguments,
    engine_scratch,
    rank_arguments,
    run_server,
)
from asyncrl.weights.vllm_guard import HOST_VARIABLE

NAME = "policy"
"""A name of the model beside the one that the user gave."""
OWN_TOOL_PARSERS = {"llama": "llama3_json", "harmony": "openai"}
"""vLLM's names of our tool formats where they differ."""
OWN_REASONING_PARSERS = {"think": "qwen3"}
NOT_ITS_OWN = ("VLLM_SERVER_DEV_MODE", "VLLM_API_KEY")
"""Variables of the user's shell that would open further routes, or ask for another key."""


def policy_command(options: EngineOptions, host: str, port: int, model: ModelConfig) -> list[str]:
    """Return the command line of vLLM's server for clients of OpenAI and Anthropic.

    model: the formats of turns, and the chat template with its variables.

    Unlike that of an engine of a run it leaves log-probabilities and sampling defaults as vLLM has them, so that its
    answers are those of plain vLLM.
    """
    tool_format, reasoning_format = model.tool_format, model.reasoning_format
    command = [
        *(sys.executable, "-m", "asyncrl.weights.vllm_api_server"),
        *("--model", options.model, "--served-model-name", options.model, NAME),
        *("--host", host, "--port", str(port)),
        *("--dtype", options.dtype, "--seed", str(options.seed)),
        *("--max-model-len", str(options.max_model_len), "--max-num-seqs", str(options.max_num_seqs)),
        *rank_arguments(options),
        *("--middleware", "asyncrl.weights.vllm_guard.Guard"),
        *("--no-enable-log-requests", "--disable-uvicorn-access-log"),
        *("--enable-auto-tool-choice", "--tool-call-parser", OWN_TOOL_PARSERS.get(tool_format, tool_format)),
    ]
    if tool_format == "harmony":
        reasoning_format = "openai_gptoss"
    if reasoning_format:
        command += ["--reasoning-parser", OWN_REASONING_PARSERS.get(reasoning_format, reasoning_format)]
    if model.chat_template:
        command += ["--chat-template", model.chat_template]
    if model.chat_template_args:
        command += ["--default-chat-template-kwargs", json.dumps(model.chat_template_args)]
    return [*command, *device_arguments(options), *options.extra_args]


def serve_policy(
    options: EngineOptions,
    credentials: Credentials,
    host: str,
    port: int,
    model: ModelConfig,
    key: str,
    ready_file: str | Path | None = None,
) -> int:
    """Serve a checkpoint until the server exits or a signal ends it; return its exit code.

    key: how a shell writes the token, for the example that is printed. Raises as `serve_engine`.
    """
    with engine_scratch("") as scratch:
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_ITS_OWN}
        env: Mapping[str, str] = {
            name: value
            for name, value in build_env(options, credentials, scratch, inherited).items()
            if name not in NOT_ITS_OWN
        } | {HOST_VARIABLE: host}
        return run_server(
            lambda chosen: policy_command(options, host, chosen, model),
            env, host, port, options.start_timeout_s, ready_file,
            lambda url: _shown_line(options, url, key),
        )  # fmt: skip


def _shown_line(options: EngineOptions, url: str, key: str) -> str:
    body = {"model": NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}
    return (
        f"policy: serving {options.model} at {url}/v1 as {NAME!r}, contexts of up to {options.max_model_len} tokens\n"
        f"policy: the API key is {key}; for example\n"
        f'    curl {url}/v1/chat/completions -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'\n"
        f'    OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY="{key}" ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY="{key}"'
    )
