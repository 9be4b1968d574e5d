"""`asyncrl serve policy CHECKPOINT`."""

from __future__ import annotations

import argparse
import os

from asyncrl.config import Config
from asyncrl.credentials import RUN_FILE, VARIABLE, user_folder
from asyncrl.gpus import ENGINE_SHARE
from asyncrl.services.command import ADDRESS, Address

HELP = "a checkpoint behind an OpenAI- and Anthropic-compatible API, for benchmarks and agents"
OPTIONS = ("CHECKPOINT", "--recipe", *ADDRESS)


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.run.model_folder import context_length
    from asyncrl.services.engine.policy import serve_policy
    from asyncrl.services.engine.service import EngineOptions

    engine, share = config.engine, config.engine.gpu_memory_utilization
    # Without a recipe no one has chosen a context: it is the model's own.
    longest = context_length(args.checkpoint) or engine.max_model_len
    options = EngineOptions(
        model=args.checkpoint,
        dtype=config.model.dtype,
        max_model_len=min(engine.max_model_len, longest) if args.recipe else longest,
        max_num_seqs=engine.max_num_seqs,
        gpu_memory_utilization=ENGINE_SHARE if share == "auto" else share,
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        threads=config.run.threads,
        seed=config.run.seed,
        start_timeout_s=config.run.start_timeout_s,
        extra_args=tuple(engine.extra_args),
    )
    return serve_policy(
        options,
        address.credentials,
        address.host,
        address.port,
        config.model,
        _shown_key(args),
        address.ready_file,
    )


def _shown_key(args: argparse.Namespace) -> str:
    """Return how a shell writes the token, without showing it."""
    if args.token_file is not None:
        return f"$(cat {args.token_file})"
    return f"${VARIABLE}" if os.environ.get(VARIABLE) else f"$(cat {user_folder() / RUN_FILE})"
