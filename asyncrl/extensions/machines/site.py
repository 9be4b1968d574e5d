"""What a cluster asks of every job, whichever recipe it runs: a small TOML file of its own, `--site FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from asyncrl.config_sections import Section
from asyncrl.errors import ConfigError
from asyncrl.textfile import read_toml


class SlurmContainer(Section):
    """The table `[slurm.container]`: the image that every process of a job runs in."""

    image: str = Field("", pattern=r"^\S*$")
    """As the runtime names it, such as "/images/asyncrl.sqsh" or "registry.example#asyncrl:1"; "" runs without."""
    runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """What starts it: srun itself, by NVIDIA's plugin Pyxis, or Apptainer inside of each step."""
    mounts: list[Annotated[str, Field(pattern=r"^/[^\s,'\"$`\\]*$")]] = Field(default_factory=list)
    """Folders of the machine that it sees, as "/data" or "/data:/inside[:ro]". Where the job was submitted, `scratch`
    and `models` are mounted anyway."""


class SlurmSite(Section):
    """The table `[slurm]`."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = "24:00:00"
    """The longest that a job runs. Submitted again, it resumes its run."""
    cpus: int = Field(0, ge=0)
    """Cores of each machine; 0 takes whole machines for the job alone (`--exclusive`)."""
    memory: str = ""
    """Memory of each machine, such as "200G", where `cpus` is given; "" asks for what the recipe needs. Whole machines
    give all of theirs."""
    lines: list[str] = Field(default_factory=list)
    """Further options of sbatch, such as "--constraint=h100"."""
    setup: list[str] = Field(default_factory=list)
    """Commands of the shell before asyncrl starts, such as "module load cuda" or "source /opt/asyncrl/bin/activate"."""
    scratch: str = "/tmp"
    """A folder on a disk of each machine, where models and the state of nodes are kept for the job."""
    models: str = ""
    """A folder with the hub's cache that all machines see (`HF_HOME`); "" keeps one in `scratch`."""
    container: SlurmContainer = SlurmContainer()


class K8sSite(Section):
    """The table `[k8s]`."""

    cpu: int = Field(0, ge=0)
    """Cores of each pod; 0 asks for 8, and 8 more for each GPU."""
    memory_gib: int = Field(0, ge=0)
    """Memory of each pod, shared memory included; 0 asks for what the recipe needs."""
    storage_gib: int = Field(0, ge=0)
    """The volume of the run folder; 0 takes what its checkpoints need."""
    storage_class: str = ""
    hub_secret: str = ""
    """A secret whose key `token` is the hub's token (`HF_TOKEN`)."""
    models_claim: str = ""
    """A volume claim that all pods may mount, which keeps the hub's cache; "" keeps one in each pod."""
    rdma: str = ""
    """The resource with which pods get the fast network, such as "rdma/ib"; they may then lock memory."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[str] = Field(default_factory=list)
    """Keys of taints that pods tolerate, such as "nvidia.com/gpu"."""


class Site(Section):
    """A whole file."""

    slurm: SlurmSite = SlurmSite()
    k8s: K8sSite = K8sSite()


def load_site(path: Path | None) -> Site:
    """Return what a file says, the defaults without one. Raises `ConfigError`."""
    if path is None:
        return Site()
    try:
        data: dict[str, Any] = read_toml(path)
        return Site.model_validate(data)
    except OSError as error:
        raise ConfigError(f"--site {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        tables: dict[tuple[Any, ...], type[Section]] = {
            ("slurm",): SlurmSite, ("slurm", "container"): SlurmContainer, ("k8s",): K8sSite,
        }  # fmt: skip
        allowed = tables.get(first["loc"][:-1], Site)
        known = f"; allowed: {', '.join(allowed.model_fields)}" if first["type"] == "extra_forbidden" else ""
        got = "" if first["type"] == "extra_forbidden" else f", got {first['input']!r}"
        raise ConfigError(f"--site {path}: {key}: {first['msg'].lower()}{got}{known}") from error
    except ValueError as error:
        raise ConfigError(f"--site {path}: {error}") from error
