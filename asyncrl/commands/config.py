"""`asyncrl config RECIPE [key=value ...]`, and the page of all settings"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "config",
        help="print a recipe's resolved configuration, after checking it",
        description="Print a recipe's resolved configuration, after checking it. The check imports the environment "
        "and curriculum that the recipe names, and so runs their code: use --no-code for a recipe that you do "
        "not trust.",
    )
    parser.add_argument(
        "recipe",
        nargs="?",
        default="",
        help="a TOML file, a folder with recipe.toml, or a name that `asyncrl recipes` lists",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument(
        "--markdown", action="store_true", help="print docs/configuration.md: what every key means"
    )
    parser.add_argument(
        "--no-code", action="store_true", help="import nothing that the recipe names, and check only the rest"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.algo.settings import resolve_settings
    from asyncrl.config import load_config
    from asyncrl.gpus import found_gpus
    from asyncrl.launch.checks.check import check_recipe
    from asyncrl.launch.machines.placement import placed, plan

    if args.markdown:
        from asyncrl.commands.config_page import markdown

        print(markdown(), end="")
        return 0
    if not args.recipe:
        raise ConfigError("config: give a recipe, or --markdown for what every key means")
    config = load_config(args.recipe, args.overrides)
    if not args.no_code:
        check_recipe(config)
    placement = plan(config, found_gpus())
    config = placed(config, placement)
    if placement.gpus:
        print(f"placement: {placement}", file=sys.stderr)
    resolved = config.model_dump(mode="json")
    resolved["algo"] = resolve_settings(config.algo)
    print(json.dumps(resolved, indent=2))
    return 0
