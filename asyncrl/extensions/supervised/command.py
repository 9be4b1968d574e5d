"""`asyncrl sft MODEL data.train=FILE`, `asyncrl sft RECIPE`"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.config import Config

ANY_ENV = "gridworld"
"""Environment of a configuration that plays none."""
RANK_OF = "ASYNCRL_RANK_OF"
"""Names the folder of the run of which torchrun has made this process a rank."""


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "sft",
        help="train a model on rows of conversations; or a recipe's tiny base model on scripted episodes",
        description="Train a model of yours on rows: conversations, prompts and completions, questions and answers, or "
        'the episodes that a run has solved (docs/sft.md). For a recipe with model.path = "sft", train its tiny base '
        "model and tokenizer on episodes of the environment's oracle and random policies. The folder of the model, "
        "which is printed, loads in transformers and vLLM.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="",
        metavar="MODEL|RECIPE",
        help="a Hugging Face folder, a GGUF file, a name of `asyncrl models` or of the hub; or a recipe, or the "
        "config.json of a run",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder to write the model to, beside the run's own checkpoints",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="runs/NAME",
        help="go on from the newest checkpoint of an interrupted run",
    )
    parser.set_defaults(run=run, loads_models=True)


def run(args: argparse.Namespace) -> int:
    if args.resume is not None and os.environ.get(RANK_OF) == str(args.resume):
        _train(args.resume)
        return 0
    if args.resume is not None:
        from asyncrl.launch.models.local_models import reopen_run

        # Without a model or recipe the first word is an override.
        words = [word for word in (args.what, *args.overrides) if word]
        return _supervised(reopen_run(args.resume, words), args.resume, args.out)
    if not args.what:
        raise ConfigError("sft: give a model or a recipe, or --resume and the folder of a run")
    config, name = configured(args.what, args.overrides)
    if config.model.path == "sft":
        return _tiny(config, args.out)
    from asyncrl.run.folder import choose_folder

    return _supervised(config, choose_folder(config, Path(f"{name}-sft.toml")), args.out)


def configured(what: str, overrides: list[str]) -> tuple[Config, str]:
    """Return the configuration that the command's words give, and a name for the run. Raises `ConfigError`."""
    from asyncrl.config import find_recipe
    from asyncrl.launch.models.local_models import load_recipe

    try:
        recipe = find_recipe(what)
    except ConfigError as error:
        if not _may_be_model(what):
            raise ConfigError(f"sft: {what!r} is neither a model nor a recipe; {error}") from None
        return _of_model(what, overrides), Path(what).name
    name = recipe.parent.name if recipe.name in ("recipe.toml", "config.json") else recipe.stem
    return load_recipe(recipe, overrides), name


def _may_be_model(what: str) -> bool:
    from asyncrl.extensions.packaged_models.packaged import PACKAGED_MODELS
    from asyncrl.launch.checks.check import HUB_NAME

    return what in PACKAGED_MODELS or Path(what).exists() or ("/" in what and bool(HUB_NAME.fullmatch(what)))


def _of_model(model: str, overrides: list[str]) -> Config:
    """Return the configuration of a model's supervised training, which has no recipe."""
    from asyncrl.config import apply_override, parse_config
    from asyncrl.config_sections import EngineConfig
    from asyncrl.import_path import search_in
    from asyncrl.launch.models.local_models import local_model, with_local_models
    from asyncrl.run.model_folder import context_length

    model = local_model("sft", model)
    usual = EngineConfig().max_model_len
    context = min(context_length(model) or usual, usual)

    data: dict[str, dict[str, object]] = {
        "run": {"python_path": [str(Path.cwd())]},
        "model": {"path": model},
        "engine": {"max_model_len": context},
    }
    for override in overrides:
        apply_override(data, override)
    if not any(data.get("data", {}).get(key) for key in ("train", "set", "heldout")):
        # Rows imply theirs.
        data.setdefault("env", {}).setdefault("name", ANY_ENV)
    config = with_local_models(parse_config(data, f"sft {model}", strict=False))
    search_in(config.run.python_path)
    return config


def _tiny(config: Config, out: Path | None) -> int:
    """Train the tiny base model of a recipe."""
    from asyncrl.launch.checks.check import check_recipe, check_tasks
    from asyncrl.process_hooks import collecting_no_garbage

    if out is None:
        raise ConfigError("sft: give --out FOLDER, where the tiny base model is to be written")
    check_recipe(config)
    check_tasks(config)
    with collecting_no_garbage():
        from asyncrl.extensions.supervised.sft import train_base_model

    print(f"base model: {train_base_model(config, out)}")
    return 0


def _supervised(config: Config, folder: Path, out: Path | None) -> int:
    """Train a model of the user's in a run folder."""
    from asyncrl.extensions.supervised.checks import check_supervised
    from asyncrl.run.folder import RunFolder

    if out is not None and out.exists() and not (out / "config.json").is_file():
        raise ConfigError(
            f"sft: --out {str(out)!r} is there already, and holds no model; give another folder"
        )
    check_supervised(config)
    with RunFolder(folder) as run_folder:
        run_folder.write_json("config.json", config.model_dump(mode="json"))
        model = _train(folder) if config.train.ranks == 1 else _run_ranks(folder, config.train.ranks)
    if out is not None:
        from asyncrl.extensions.supervised.start import save_model

        model = save_model(model, out)
    print(f"model: {model}")
    return 0


def _train(folder: Path) -> Path:
    from asyncrl.process_hooks import collecting_no_garbage

    with collecting_no_garbage():
        from asyncrl.extensions.supervised.run import train_supervised

    return train_supervised(folder)


def _run_ranks(folder: Path, ranks: int) -> Path:
    """Train on several ranks of this machine under torchrun. Raises `StopError` where one of them has failed."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    from asyncrl.errors import StopError
    from asyncrl.process_start import children_without_folder
    from asyncrl.run.checkpoints import complete_checkpoints

    each = ["--standalone", "--nproc-per-node", str(ranks)]
    os.environ[RANK_OF] = str(folder)
    try:
        with children_without_folder():
            torchrun([*each, "-m", "asyncrl", "sft", "--resume", str(folder)])
    except ChildFailedError as error:
        raise StopError(f"sft: a rank has failed: {error}") from error
    finally:
        del os.environ[RANK_OF]
    return complete_checkpoints(folder / "checkpoints")[0][1]
