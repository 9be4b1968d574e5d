"""Checkpoints as files below the server's folder, and their names as clients know them.

tinker://POLICY/weights/NAME            an adapter with its optimizer, to train on from
tinker://POLICY/sampler_weights/NAME    an adapter alone, to sample from, as peft and vLLM read it
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from asyncrl.clock import stamp_s
from asyncrl.errors import InputError
from asyncrl.extensions.tinker.ledger import Checkpoint, Ledger
from asyncrl.extensions.tinker.messages import ID, NAME

WEIGHTS, SAMPLER_WEIGHTS = "weights", "sampler_weights"
SNAPSHOT = "_"
"""Begins the names of adapters that were written for one sampler; no name of a client's begins so."""
KEPT_SNAPSHOTS = 64
"""Of each policy the newest of them: a loop takes one a step, and samples from the last few."""
_PATH = re.compile(rf"tinker://({ID[1:-1]})/(weights|sampler_weights)/({NAME[1:-1]})")


def parse_path(path: str) -> tuple[str, str, str]:
    """Return policy, kind and name of a checkpoint's path. Raises `InputError`."""
    found = _PATH.fullmatch(path)
    if found is None:
        raise InputError(
            f"path: {path[:200]!r} is no checkpoint of this server: tinker://POLICY/weights/NAME"
        )
    return found[1], found[2], found[3]


def expiry(ttl_s: int | None) -> float | None:
    """Return when what is kept for so long from now on expires; None for never."""
    return None if ttl_s is None else stamp_s() + ttl_s


class Checkpoints:
    """folder: of the server. It holds the files, the ledger what there is."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.folder, self.ledger = folder, ledger

    def state_file(self, policy: str, number: int) -> Path:
        """Return where a policy's state after its request `number` is."""
        return self.folder / "policies" / policy / f"state-{number}.safetensors"

    def weights_file(self, policy: str, name: str) -> Path:
        """Return where a checkpoint to train on from is."""
        return self.folder / "policies" / policy / WEIGHTS / f"{name}.safetensors"

    def settings_file(self, policy: str, name: str) -> Path:
        """Return where it says what the adapter of such a checkpoint was made by."""
        return self.weights_file(policy, name).with_suffix(".json")

    @property
    def adapters(self) -> Path:
        """The folder of adapters to sample from."""
        return self.folder / "adapters"

    def find(self, path: str, kind: str = "") -> Checkpoint:
        """Return a checkpoint by its path. Raises `InputError` for one that is not there, has expired or is of another
        kind."""
        policy, found_kind, name = parse_path(path)
        if kind and found_kind != kind:
            raise InputError(f"path: {path} must be of {kind}")
        found = self.ledger.checkpoint(policy, found_kind, name)
        if found is None or (found.expires is not None and found.expires < stamp_s()):
            raise InputError(f"path: there is no checkpoint {path}")
        return found

    def remove(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint. Samplers that were made of it sample on."""
        self.ledger.remove_checkpoint(checkpoint)
        if checkpoint.kind == WEIGHTS:
            for file_of in (self.weights_file, self.settings_file):
                file_of(checkpoint.policy, checkpoint.name).unlink(missing_ok=True)
        elif not any(one["adapter"] == self.adapter(checkpoint) for one in self.ledger.samplers()):
            shutil.rmtree(self.adapters / self.adapter(checkpoint), ignore_errors=True)

    def adapter(self, checkpoint: Checkpoint) -> str:
        """Return the folder of a checkpoint to sample from, below `adapters`."""
        return f"{checkpoint.policy}/{checkpoint.name}"

    def remove_expired(self) -> None:
        """Delete the checkpoints whose time is over, and all but the newest snapshots of each policy."""
        for one in self.ledger.checkpoints():
            if one.expires is not None and one.expires < stamp_s():
                self.remove(one)
        for folder in self.adapters.glob("*"):
            numbers = sorted(int(one.name.removeprefix(SNAPSHOT)) for one in folder.glob(f"{SNAPSHOT}*"))
            for number in numbers[:-KEPT_SNAPSHOTS]:
                shutil.rmtree(folder / f"{SNAPSHOT}{number}", ignore_errors=True)
