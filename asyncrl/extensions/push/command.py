"""`asyncrl push RUN ORG/NAME`"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import ConfigError, InputError
from asyncrl.scratch import scratch_folder

if TYPE_CHECKING:
    from asyncrl.config import Config

ADAPTER = "adapter"
TOKENIZER = ("tokenizer", "special_tokens_map", "added_tokens", "vocab", "merges", "chat_template")
"""What the names of files begin with that an adapter's repository has beside the adapter."""
CARD = "README.md"


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "push",
        help="put a run's model on a hub, with a card of its curve, settings, data and evaluation",
        description="Upload a checkpoint of a run to a repository on the Hugging Face hub, or on one of your own "
        "(HF_ENDPOINT), in one commit. The token is that of HF_TOKEN or `hf auth login`. Training state and logs stay "
        "here.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of a run, also of `asyncrl sft`")
    parser.add_argument("name", metavar="ORG/NAME", help="the repository, which is made where there is none")
    parser.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint of this step; the newest unless given"
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="of a run with [lora], the adapter alone; else it is merged into the weights",
    )
    parser.add_argument("--private", action="store_true", help="make a repository that only you can read")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write what would be uploaded to a new folder, and upload nothing",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.extensions.push.model_card import NAME

    if not NAME.fullmatch(args.name):
        raise ConfigError(f"push: the repository must be ORG/NAME, got {args.name!r}")
    if args.out is not None:
        if args.out.exists():
            raise ConfigError(f"push: --out {str(args.out)!r} is there already; give another folder")
        args.out.mkdir(parents=True)
        lay_out(args.folder, args.name, args.out, args.step, args.adapter)
        print(args.out)
        return 0
    with scratch_folder("push") as folder:
        version = lay_out(args.folder, args.name, folder, args.step, args.adapter)
        print(upload(folder, args.name, f"Step {version}", args.private))
    return 0


def lay_out(run: Path, name: str, folder: Path, step: int | None = None, adapter: bool = False) -> int:
    """Fill an empty folder with what a repository gets; return the steps that the model has taken.

    Large files are links. Raises `ConfigError` for a run without such a checkpoint, and `InputError` for damaged files.
    """
    from asyncrl.config import load_config
    from asyncrl.extensions.push.model_card import CURVE, model_card
    from asyncrl.run.metrics import read_metrics

    if not (run / "config.json").is_file():
        raise ConfigError(f"push: {str(run)!r} is no folder of a run: it has no config.json")
    config = load_config(run / "config.json")
    version, checkpoint = _checkpoint(run, step)
    if adapter and not (checkpoint / ADAPTER).is_dir():
        raise ConfigError(f"push: --adapter: {checkpoint} has no adapter; its run has no [lora]")
    for file in _files(checkpoint, adapter):
        (folder / file.name).symlink_to(file.resolve())
    if adapter:
        _name_base(folder, config)
    curve = (run / CURVE).is_file()
    if curve:
        (folder / CURVE).symlink_to((run / CURVE).resolve())
    summary = _summary(run)
    card = model_card(config, name, version, summary, read_metrics(run), adapter, curve)
    (folder / CARD).write_text(card)
    return version


def upload(folder: Path, name: str, message: str, private: bool) -> str:
    """Upload a folder in one commit; return the commit's address. Raises `ConfigError` where the hub refuses it."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    files = sorted(folder.iterdir())
    print(
        f"push: {len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB, to {name}",
        file=sys.stderr,
    )
    api = huggingface_hub.HfApi(library_name="asyncrl")
    try:
        api.create_repo(name, private=private or None, exist_ok=True)
        done = api.create_commit(
            name,
            [huggingface_hub.CommitOperationAdd(file.name, str(file.resolve())) for file in files],
            commit_message=message,
        )
    except OfflineModeIsEnabled as error:
        raise ConfigError("push: HF_HUB_OFFLINE is set, so the hub is not asked; unset it") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        hint = "; it needs HF_TOKEN, of an account that may write there" if status in (401, 403) else ""
        raise ConfigError(f"push: the hub refuses {name!r}: {_first(error)}{hint}") from error
    except OSError as error:
        raise ConfigError(f"push: the hub is not reached: {_first(error)}") from error
    return str(done.commit_url)


def _checkpoint(run: Path, step: int | None) -> tuple[int, Path]:
    from asyncrl.run.checkpoints import complete_checkpoints

    found = complete_checkpoints(run / "checkpoints")
    if not found:
        raise ConfigError(f"push: {run} has no complete checkpoint")
    if step is None:
        return found[0]
    there = dict(found)
    if step not in there:
        raise ConfigError(f"push: --step: {run} has checkpoints of the steps {sorted(there)}, got {step}")
    return step, there[step]


def _files(checkpoint: Path, adapter: bool) -> list[Path]:
    """Return the model's files, without what only a trainer reads."""
    from asyncrl.run.checkpoints import MARKER

    own = [
        file for file in sorted(checkpoint.iterdir()) if file.is_file() and file.name not in (MARKER, CARD)
    ]
    if not adapter:
        return own
    beside = [file for file in own if file.name.startswith(TOKENIZER)]
    return beside + [file for file in sorted((checkpoint / ADAPTER).iterdir()) if file.name != CARD]


def _name_base(folder: Path, config: Config) -> None:
    """Have the adapter name its base model as others can find it, and no folder of this machine."""
    from asyncrl.extensions.push.model_card import NAME

    file = folder / "adapter_config.json"
    settings = json.loads(file.read_text())
    file.unlink()
    base = config.model.path
    settings["base_model_name_or_path"] = base if NAME.fullmatch(base) else Path(base).name
    file.write_text(json.dumps(settings, indent=2) + "\n")


def _summary(run: Path) -> dict[str, object]:
    file = run / "summary.json"
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"push: {file}: is no JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
