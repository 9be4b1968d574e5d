"""`asyncrl serve reward_model` and `asyncrl serve judge_engine`: by themselves, or as processes of a run."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.services.command import Address, need

MORE_TOKENS = 2048
"""Tokens of a judge's question beside the episode, at most for usual rubrics."""


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.extensions.judge.service import serve_reward_model

    judge = config.section(JudgeConfig)
    key, folder = (
        ("--model", args.model) if args.model else ("judge.model", judge.model * (judge.kind == "folder"))
    )
    serve_reward_model(key, need(folder, "--model", "reward_model"), config.run.threads, address)
    return 0


def start_engine(args: argparse.Namespace, config: Config, address: Address) -> int:
    """Serve a version of the policy as `asyncrl serve policy` does. See `RoleCommand`."""
    from asyncrl.run.model_folder import context_length
    from asyncrl.services.engine import policy_command

    judge = config.section(JudgeConfig)
    args.checkpoint = need(
        (judge.model if judge.kind == "policy" else "") or args.model,
        "judge.model, which names the version that judges: an evaluation knows no other than the one it evaluates, or "
        "--model",
        "judge_engine",
    )
    # What a judge reads is an episode with marks and a question around it.
    needed = 2 * config.engine.max_model_len + MORE_TOKENS + judge.max_tokens
    longest = min(context_length(args.checkpoint) or needed, needed)
    if judge.max_tokens >= longest:
        raise ConfigError(
            f"judge.max_tokens: must be below {longest}, the tokens that {args.checkpoint} reads at once: what it "
            f"judges must fit before its reply; got {judge.max_tokens}"
        )
    engine = config.engine.model_copy(update={"max_model_len": longest})
    args.recipe = args.recipe or str(args.folder)
    return policy_command.start(args, config.model_copy(update={"engine": engine}), address)
