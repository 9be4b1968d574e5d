"""A micro-batch that has been trained on the CPU, computed again as on a GPU, of which there need not be one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.algo.metrics import reduce_over_ranks
from asyncrl.extensions.critic.part import Critic
from asyncrl.extensions.critic.value_head import VALUES
from asyncrl.train.step import gradient as steps
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from tests.fake_gpu import fake_gpu


class ModelOnAGpu:
    """What a model on a GPU gives to the loss, without values."""

    device = torch.device("cuda")

    def outputs(
        self, token_ids: Tensor, mask: Tensor, temperature: float, want: tuple[str, ...] = (),
        compared: str | None = None, extras: Any = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        names = VALUES if {"values", "detached_values"} & {*want} else want
        more = () if compared is None else (compared,)
        found = {
            name: torch.empty(mask.shape, device=self.device) for name in ("logp", "entropy", *names, *more)
        }
        return found | {name: found[name][:, 0] for name in found if name.endswith("end_values")}


class Recorded:
    """Records the arguments of `micro_batch` while training goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        self.micro_batch = steps.micro_batch

        def recording(*given: Any) -> Any:
            self.calls.append(given)
            return self.micro_batch(*given)

        monkeypatch.setattr(steps, "micro_batch", recording)

    def losses_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor | None]:
        """Return the losses of policy and critic of the first micro-batch with a gradient, whose rows are on the CPU;
        its metrics are reduced, too.

        A tensor of the CPU that meets one of the GPU fails, as in torch.
        """
        with_gradient = (given for *given, has_gradient in self.calls if has_gradient)
        step, share, rows, totals, statistics, last = next(with_gradient)
        engine = ModelOnAGpu()
        own = {name: getattr(step, name) for name in step.__dataclass_fields__}
        on_gpu = SimpleNamespace(**own | {"engine": engine, "policy_learns": True, "trains_policy": True})
        found = []
        monkeypatch.setattr(
            Critic, "outputs", lambda _, engine, *rows: engine.outputs(*rows[:2], 1.0, ("values",))
        )
        monkeypatch.setattr(
            AuxiliaryModels, "compared", lambda models, step, micro: next(iter(models.gives), None)
        )
        monkeypatch.setattr(
            steps,
            "_backward",
            lambda step, policy, others, last: found.append((policy, others[0][1] if others else None)),
        )
        with fake_gpu():
            # They are made on the engine's device.
            statistics = {name: torch.empty(value.shape, device="cuda") for name, value in statistics.items()}
            metrics, _ = self.micro_batch(on_gpu, share, rows, totals, statistics, last)
            reduce_over_ranks(metrics, lambda values, how: None)
        return found[0]
