"""The settings of where metrics go, keys of the core's section `run`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.config_sections import PATH, Section, Seldom

TENSORBOARD = "tensorboard"
"""The sink that the trainer writes itself."""


class MetricSinks(Section):
    """Keys of `[run]`."""

    sinks: Seldom[list[Literal["tensorboard", "wandb", "mlflow", "trackio", "swanlab"]]] = Field(
        default=["tensorboard"]
    )
    """Where the metrics of steps go beside the run's folder (docs/metrics.md)."""
    sink_python: Seldom[Annotated[str, PATH]] = ""
    """Python of another environment, with the libraries of sinks that cannot be installed beside vLLM."""

    @property
    def tensorboard(self) -> bool:
        """See `RunConfig`."""
        return TENSORBOARD in self.sinks

    @property
    def sink_processes(self) -> list[str]:
        """The sinks that are processes of their own."""
        return [name for name in self.sinks if name != TENSORBOARD]
