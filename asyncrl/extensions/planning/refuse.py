"""Refuses a run whose memory cannot suffice, before anything starts. Loads no torch: the prediction is a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.planning.machine import gpu_memory
from asyncrl.launch.machines.placement import plan
from asyncrl.machine import usable_memory_bytes
from asyncrl.process_start import start_process
from asyncrl.scratch import scratch_folder

GIB = 2**30
EVEN_SO = "--ignore-memory"
"""Option of `asyncrl train`."""
TIMEOUT_S = 300.0
FITS, DOES_NOT, WRONG_INPUT = 0, 1, 2
"""Exit codes of `asyncrl plan memory`."""
OPTIMIZER_BYTES = 12
"""The bytes of a trained parameter: float32 moments and gradient."""


def check_memory(config: Config, even_so: bool = False) -> Config:
    """Refuse what does not fit on this machine. Raises `ConfigError` with the sums.

    even_so: print the sums instead. Returns the configuration, with the share of the engines where only a smaller one
    than what they take otherwise fits.

    With GPUs that is what `asyncrl plan memory` says. On a CPU only what weights, moments and gradients take for
    certain is compared with what the machine has.
    """
    if config.model.path == "sft":
        return config  # the tiny base model
    sizes = gpu_memory()
    try:
        if sizes:
            return _check_gpus(config, sizes)
        _check_host(config, usable_memory_bytes(psutil.virtual_memory().total))
    except ConfigError as error:
        if not even_so:
            raise ConfigError(f"{error}\n{EVEN_SO} starts the run all the same") from None
        print(f"warning: {error}\nit is started all the same ({EVEN_SO})", file=sys.stderr)
    return config


def _check_gpus(config: Config, sizes: list[int]) -> Config:
    with scratch_folder("plan") as folder:
        file = folder / "config.json"
        file.write_text(json.dumps(config.model_dump(mode="json")))
        command = [
            sys.executable, "-m", "asyncrl", "plan", "memory", str(file), "--gpu", f"{min(sizes) // 2**20}MiB",
            "--gpus", str(len(sizes)), "--json", str(folder / "plan.json"),
        ]  # fmt: skip
        printed, errors = folder / "output", folder / "errors"
        with open(printed, "wb") as output, open(errors, "wb") as complaints:
            planner = start_process(command, os.environ, output.fileno(), errors=complaints.fileno())
        try:
            code = planner.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            planner.kill()
            planner.wait()
            _unchecked(f"no prediction within {TIMEOUT_S:g} s")
            return config
        prediction, complaint = printed.read_text(), errors.read_text()
        plan_file = folder / "plan.json"
        found = json.loads(plan_file.read_text()) if code == FITS else {}
    if code == DOES_NOT and "does not fit" in prediction:
        raise ConfigError(f"this run does not fit the GPUs:\n{prediction.rstrip()}")
    if code != FITS:
        _unchecked(complaint.strip().rpartition("\n")[2])
    for note in found.get("notes", ()):
        print(f"note: {note}", file=sys.stderr)
    share = found.get("gpu_memory_utilization")
    usual = plan(config, [str(number) for number in range(len(sizes))]).gpu_memory_utilization
    if config.engine.gpu_memory_utilization != "auto" or share is None or share == usual:
        return config
    print(
        f"note: engines take {share:g} of a GPU's memory instead of {usual:g}, so that all fits",
        file=sys.stderr,
    )
    return config.model_copy(
        update={"engine": config.engine.model_copy(update={"gpu_memory_utilization": share})}
    )


def _check_host(config: Config, total: int) -> None:
    """Refuse a local model of which engines and trainer alone need more than the machine has."""
    stored = sum(file.stat().st_size for file in Path(config.model.path).glob("*.safetensors"))
    if not stored:
        return
    parameters = stored // (2 if _stored_in_16_bits(Path(config.model.path)) else 4)
    weights = parameters * (2 if config.model.dtype == "bfloat16" else 4)
    engines = config.engine.count * weights
    elsewhere = config.train.offload_folder or config.lora.rank
    trainer = weights + (0 if elsewhere else OPTIMIZER_BYTES * parameters)
    if engines + trainer > total:
        raise ConfigError(
            f"model.path: {config.model.path!r} has {parameters / 1e9:.1f} billion parameters: {config.engine.count} "
            f"engine(s) need {engines / GIB:.1f} GiB and the trainer {trainer / GIB:.1f} GiB, activations and "
            f"caches not counted, and the machine has {total / GIB:.1f} GiB; lora.rank=16 trains an adapter alone, "
            "train.offload_folder keeps the optimizer's states in files"
        )


def _stored_in_16_bits(folder: Path) -> bool:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return found.get("dtype", found.get("torch_dtype", "float32")) in ("bfloat16", "float16")


def _unchecked(why: str) -> None:
    print(f"memory was not predicted: {why}", file=sys.stderr)
