"""`asyncrl serve reward_model`: by itself, or as a process of a run."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.services.command import Address, need


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.extensions.judge.service import serve_reward_model

    judge = config.section(JudgeConfig)
    key, folder = (
        ("--model", args.model) if args.model else ("judge.model", judge.model * (judge.kind == "folder"))
    )
    serve_reward_model(key, need(folder, "--model", "reward_model"), config.run.threads, address)
    return 0
