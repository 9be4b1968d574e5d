"""`asyncrl recipes [copy NAME [DEST]]`"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "recipes",
        help="list recipes, or copy one to change it",
        description="List the recipes that a name alone finds: those of recipes/ in the current folder, which go "
        "first, and those that come with asyncrl.",
    )
    parser.set_defaults(run=show)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    copy = commands.add_parser(
        "copy", help="copy a recipe with all it needs", description="Copy a recipe's folder, to change it."
    )
    copy.add_argument("name", help="a recipe, as `asyncrl recipes` lists them")
    copy.add_argument(
        "dest", nargs="?", type=Path, help="folder to make; recipes/NAME unless given, which NAME finds then"
    )
    copy.set_defaults(run=copy_recipe)


def show(args: argparse.Namespace) -> int:
    """List the recipes with their first sentences."""
    from asyncrl.config import LOCAL_RECIPES, known_recipes

    recipes = known_recipes()
    width = max(map(len, recipes), default=0) + 2
    for name, path in recipes.items():
        own = f"  [{path}]" if path.is_relative_to(LOCAL_RECIPES) else ""
        print(f"{name:{width}s}{first_sentence(path)}{own}")
    return 0


def copy_recipe(args: argparse.Namespace) -> int:
    """Copy a recipe's folder and print how to run the copy."""
    from asyncrl.config import LOCAL_RECIPES, PACKAGED_RECIPES, find_recipe

    packaged = PACKAGED_RECIPES / args.name / "recipe.toml"
    recipe = packaged if packaged.is_file() else find_recipe(args.name)
    dest = args.dest or LOCAL_RECIPES / recipe.parent.name
    if dest.exists():
        raise ConfigError(f"recipes copy: {str(dest)!r} is there already; give another folder, or remove it")
    try:
        shutil.copytree(recipe.parent, dest, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise ConfigError(f"recipes copy: {str(dest)!r} cannot be written: {error}") from error
    print(f"{dest} is yours to change; run it with\n    asyncrl train {dest}")
    return 0


def first_sentence(recipe: Path) -> str:
    """Return the first sentence of the comment at the start of a recipe."""
    lines = recipe.read_text(encoding="utf-8").splitlines()
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").rstrip())
    # Not after an abbreviation of two letters.
    return re.split(r"(?<=\w{3})\.(?: |$)", " ".join(comment), maxsplit=1)[0]
