"""Where a run's checkpoints are, which ones are complete, and what they contain. Imports no torch: the launcher uses
it, too.

checkpoints/step-NNNNNN/        a policy in Hugging Face format, which transformers and vLLM load directly
    adapter/                    beside a policy with an adapter, the adapter alone, in peft's format
    training_state/             what a trainer resumes from: training.safetensors, training.json, and for each further
                                rank training-RANK.safetensors
    complete.json               size and checksum of every other file, written last
"""

from __future__ import annotations

import json
from pathlib import Path

from asyncrl.errors import InputError

KEPT_CHECKPOINTS = 2
"""So many stay in a run's folder, while a further one is written."""
CHECKPOINTS = "checkpoints"
"""Their folder in that of a run."""
MARKER = "complete.json"
"""Written last; lists size and checksum of every other file."""
STATE = "training_state"
TENSORS = "training.safetensors"
VALUES = "training.json"


def checkpoint_path(folder: Path, version: int) -> Path:
    return folder / f"step-{version:06d}"


def state_folder(path: Path) -> Path:
    """Return the path of a checkpoint's training state."""
    return path / STATE


def state_file(rank: int) -> str:
    """Return the name of the file with a rank's part of the training state."""
    return f"training-{rank:05d}.safetensors" if rank else TENSORS


def state_files(folder: Path) -> list[Path]:
    """Return the files of all ranks in a folder that holds a training state; none where it holds no state."""
    first = folder / TENSORS
    return [first, *sorted(folder.glob("training-*.safetensors"))] if first.is_file() else []


def complete_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return `(version, path)` of the complete training checkpoints, newest first."""
    found = []
    for path in folder.glob("step-*"):
        digits = path.name.removeprefix("step-")
        if digits.isdigit() and (path / MARKER).is_file() and (state_folder(path) / VALUES).is_file():
            found.append((int(digits), path))
    return sorted(found, reverse=True)


def run_of(path: str) -> Path | None:
    """Return the folder of the run whose folder, or one of whose checkpoints, `path` is; None for anything else.

    Raises `InputError` for the folder of a run that has no complete checkpoint yet.
    """
    folder = Path(path).absolute()
    if folder.parent.name == CHECKPOINTS and (folder.parent.parent / "config.json").is_file():
        return folder.parent.parent
    if not ((folder / "config.json").is_file() and (folder / CHECKPOINTS).is_dir()):
        return None
    if not complete_checkpoints(folder / CHECKPOINTS):
        raise InputError(f"{path}: has no complete checkpoint yet")
    return folder


def newest_of_run(path: str) -> str:
    """Return the newest complete checkpoint of a run, whose folder `path` is; any other path or name as given."""
    folder = Path(path)
    found = complete_checkpoints(folder / CHECKPOINTS) if (folder / CHECKPOINTS).is_dir() else []
    return str(found[0][1]) if found else path


def listed_files(path: Path, written: str | bytes) -> dict[str, tuple[int, str]]:
    """Return size in bytes and checksum of each file of a checkpoint by what its marker says.

    Raises `InputError` for a marker that is none, or names a file outside the checkpoint.
    """
    try:
        listed = json.loads(written)
        found = {name: (int(num_bytes), str(checksum)) for name, (num_bytes, checksum) in listed.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"checkpoint {path}: {MARKER} is damaged: {error!r:.200}") from error
    for name in found:
        if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise InputError(f"checkpoint {path}: {MARKER} names a file elsewhere: {name!r:.200}")
    return found
