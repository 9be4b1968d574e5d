"""Where a run's checkpoints are, which are whole, and what is in them. Imports no torch: the launcher looks, too.

checkpoints/step-NNNNNN/        a policy in Hugging Face format, which transformers and vLLM load as it is
    adapter/                    beside a policy with an adapter, the adapter alone, in peft's format
    training_state/             what a trainer goes on from: training.safetensors, training.json
    complete.json               size and checksum of every other file, written last
"""

from __future__ import annotations

from pathlib import Path

MARKER = "complete.json"
"""Written last; lists size and checksum of every other file."""
STATE = "training_state"
TENSORS = "training.safetensors"
VALUES = "training.json"


def checkpoint_path(folder: Path, version: int) -> Path:
    return folder / f"step-{version:06d}"


def state_folder(path: Path) -> Path:
    """Return where a checkpoint's training state is; older checkpoints hold it beside the policy."""
    return path if (path / VALUES).is_file() else path / STATE


def complete_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return `(version, path)` of the training checkpoints that were written to their end, newest first."""
    found = []
    for path in folder.glob("step-*"):
        digits = path.name.removeprefix("step-")
        if digits.isdigit() and (path / MARKER).is_file() and (state_folder(path) / VALUES).is_file():
            found.append((int(digits), path))
    return sorted(found, reverse=True)


def loadable_policy(model: str, scratch: Path) -> str:
    """Return a folder that vLLM can load for `model`: itself, but for an older checkpoint of a run.

    There the training state lies beside the policy, and vLLM reads every safetensors file as weights. Such a one is
    linked into `scratch` without it.
    """
    path = Path(model).resolve()
    if not (path / TENSORS).is_file():
        return model
    folder = scratch / "policy"
    folder.mkdir()
    for file in path.iterdir():
        if file.name not in (TENSORS, VALUES, MARKER):
            (folder / file.name).symlink_to(file)
    return str(folder)
