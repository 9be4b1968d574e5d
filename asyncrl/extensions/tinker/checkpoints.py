"""Checkpoints as files below the server's folder, and their names as clients know them.

tinker://POLICY/weights/NAME            an adapter with its optimizer, to train on from
tinker://POLICY/sampler_weights/NAME    an adapter alone, to sample from, as peft and vLLM read it
tinker://POLICY/external_weights/NAME   the same, to be downloaded; it names the base model as clients do
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from asyncrl.clock import stamp_s
from asyncrl.errors import InputError
from asyncrl.extensions.tinker.clients import visible
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.messages import ID, NAME
from asyncrl.extensions.tinker.tables import Checkpoint

WEIGHTS, SAMPLER_WEIGHTS, EXTERNAL_WEIGHTS = "weights", "sampler_weights", "external_weights"
STATE = "state-"
SNAPSHOT = "_"
"""Begins the names of adapters that were written for one sampler; no name of a client's begins so."""
KEPT_SNAPSHOTS = 64
"""Of each policy the newest of them: a loop takes one a step, and samples from the last few."""
_PATH = re.compile(rf"tinker://({ID[1:-1]})/(weights|sampler_weights|external_weights)/({NAME[1:-1]})")


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
        return self.folder / "policies" / policy / f"{STATE}{number}.safetensors"

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

    def external_folder(self, policy: str, name: str) -> Path:
        """Return where a checkpoint to download is."""
        return self.folder / "policies" / policy / EXTERNAL_WEIGHTS / name

    def files(self, checkpoint: Checkpoint) -> list[Path]:
        """Return the files of a checkpoint."""
        if checkpoint.kind == WEIGHTS:
            return [
                file_of(checkpoint.policy, checkpoint.name)
                for file_of in (self.weights_file, self.settings_file)
            ]
        if checkpoint.kind == SAMPLER_WEIGHTS:
            return sorted((self.adapters / self.adapter(checkpoint)).iterdir())
        return sorted(self.external_folder(checkpoint.policy, checkpoint.name).iterdir())

    def copy(self, source: Checkpoint, copy: Checkpoint) -> None:
        """Make the files of a copy; their bytes are shared."""
        for file in self.files(source):
            relative = str(file.relative_to(self.folder)).replace(source.policy, copy.policy, 1)
            target = self.folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            # Of a server that was killed while it copied.
            target.unlink(missing_ok=True)
            _link(file, target)

    def find(self, path: str, client: str, kind: str = "", is_own: bool = False) -> Checkpoint:
        """Return a checkpoint by its path. client: who asks, who sees its own and, without `is_own`, public ones.

        Raises `InputError` for one that is not there, has expired or is of another kind.
        """
        policy, found_kind, name = parse_path(path)
        if kind and found_kind != kind:
            raise InputError(f"path: {path} must be of {kind}")
        found = self.ledger.checkpoint(policy, found_kind, name)
        record = self.ledger.policy(policy)
        sees = record is not None and visible(client, record.client)
        if found is None or (found.expires is not None and found.expires < stamp_s()):
            sees = False
        elif found.public and not is_own:
            sees = True
        if found is None or not sees:
            raise InputError(f"path: there is no checkpoint {path}")
        return found

    def remove(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint. Samplers that were made of it sample on."""
        self.ledger.remove_checkpoint(checkpoint)
        if checkpoint.kind == WEIGHTS:
            for file in self.files(checkpoint):
                file.unlink(missing_ok=True)
        elif checkpoint.kind == EXTERNAL_WEIGHTS:
            shutil.rmtree(self.external_folder(checkpoint.policy, checkpoint.name), ignore_errors=True)
        elif (adapter := self.adapter(checkpoint)) not in self.ledger.sampled_adapters():
            shutil.rmtree(self.adapters / adapter, ignore_errors=True)

    def adapter(self, checkpoint: Checkpoint) -> str:
        """Return the folder of a checkpoint to sample from, below `adapters`."""
        return f"{checkpoint.policy}/{checkpoint.name}"

    def remove_state(self, policy: str) -> None:
        """Delete the files of a policy's state."""
        for file in (self.folder / "policies" / policy).glob(f"{STATE}*.safetensors"):
            file.unlink(missing_ok=True)

    def tidy(self, forgotten_before: float) -> None:
        """Delete what nobody can ask for any more, while nothing is being saved: checkpoints whose time is over, what a
        kill has left, adapters without a sampler or checkpoint, all but the newest snapshots of each policy, and
        sessions that ended before a moment."""
        for one in self.ledger.expired(stamp_s()):
            self.remove(one)
        self.ledger.forget_sessions(forgotten_before)
        self._tidy_adapters()
        for folder in self.folder.glob("policies/*"):
            self._tidy_policy(folder)

    def _tidy_adapters(self) -> None:
        used = self.ledger.sampled_adapters()
        used |= {self.adapter(one) for one in self.ledger.checkpoints() if one.kind == SAMPLER_WEIGHTS}
        for folder in self.adapters.glob("*"):
            numbers = sorted(int(one.name.removeprefix(SNAPSHOT)) for one in folder.glob(f"{SNAPSHOT}*"))
            kept = {one for one in used if one.startswith(f"{folder.name}/")}
            kept -= {f"{folder.name}/{SNAPSHOT}{number}" for number in numbers[:-KEPT_SNAPSHOTS]}
            for one in folder.iterdir():
                if f"{folder.name}/{one.name}" not in kept:
                    shutil.rmtree(one, ignore_errors=True)
            _remove_empty(folder)

    def _tidy_policy(self, folder: Path) -> None:
        record = self.ledger.policy(folder.name)
        newest = None if record is None or record.removed is not None else record.applied
        for file in folder.glob(f"{STATE}*.safetensors"):
            if newest is None or int(file.stem.removeprefix(STATE)) < newest:
                file.unlink(missing_ok=True)
        there = {(one.kind, one.name) for one in self.ledger.checkpoints(folder.name)}
        for file in folder.glob(f"{WEIGHTS}/*"):
            if file.suffix in (".safetensors", ".json") and (WEIGHTS, file.stem) not in there:
                file.unlink(missing_ok=True)
        for one in folder.glob(f"{EXTERNAL_WEIGHTS}/*"):
            if (EXTERNAL_WEIGHTS, one.name) not in there:
                shutil.rmtree(one, ignore_errors=True)
        _remove_empty(folder / WEIGHTS)
        _remove_empty(folder / EXTERNAL_WEIGHTS)
        _remove_empty(folder)


def _link(file: Path, target: Path) -> None:
    """Make `target` a file of the same content: the same bytes where the file is never written to again."""
    if file.suffix == ".safetensors":
        with contextlib.suppress(OSError):
            os.link(file, target)
            return
    shutil.copyfile(file, target)


def _remove_empty(folder: Path) -> None:
    """Delete a folder that holds nothing."""
    with contextlib.suppress(OSError):
        folder.rmdir()
