"""The setting of runs on Ray, a key of `[placement]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class RayConfig(Section):
    """A key of `[placement]`."""

    ray: Seldom[
        dict[Literal["engine", "env", "rollout", "trainer"], dict[str, Annotated[float, Field(gt=0)]]]
    ] = Field(default_factory=dict)
    """With `--on ray` what each process of a role asks Ray for, beside a CPU and its GPUs, such as `{ engine = {
    "accelerator_type:H100" = 0.001 } }`; CPU and GPU may be among it."""
