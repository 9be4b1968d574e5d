"""`asyncrl sft RECIPE --out DIR`"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "sft",
        help="train the tiny base model of a recipe on scripted episodes",
        description="Train a tiny Qwen3-shaped model and its tokenizer on episodes of the environment's oracle and "
        "random policies. The folder loads in transformers and vLLM.",
    )
    parser.add_argument("recipe", help="a recipe, or the config.json of a run")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--out", required=True, help="folder to write")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.config import load_config
    from asyncrl.launch.check import check_recipe, check_tasks
    from asyncrl.process_hooks import collecting_no_garbage

    config = load_config(args.recipe, args.overrides)
    check_recipe(config)
    check_tasks(config)
    with collecting_no_garbage():
        from asyncrl.train.sft import train_base_model

    folder = train_base_model(config, args.out)
    print(f"base model: {folder}")
    return 0
