"""Successive training runs on one engine, since starting an engine takes longer than a short run.

Before each run the engine gets the base model's weights back, as version 0. Buffer, environments, worker and trainer
are the run's own. What a run of its own evaluates while it trains (`eval.every`), these evaluate after they have
trained: on the same engine, which then has nothing else to do.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from asyncrl.config import Config
from asyncrl.credentials import share_one_token
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.gpus import found_gpus
from asyncrl.launch.evaluation.evaluate import EvalResult
from asyncrl.launch.evaluation.periodic_evaluation import PeriodicEvaluation, pin_policy
from asyncrl.launch.machines.placement import placed, plan
from asyncrl.launch.models.start_model import start_model
from asyncrl.launch.processes.process_group import ProcessGroup, generation_nice
from asyncrl.launch.roles.roles import Roles
from asyncrl.launch.train import TrainRun, print_status
from asyncrl.run.folder import RunFolder, private_folder
from asyncrl.services.engine.client import EngineClient
from asyncrl.tasks.plans import Plan
from asyncrl.weights.files import write_weights
from asyncrl.weights.folders import claim_weights, remove_deserted, remove_weights, weights_folder


def may_share(config: Config) -> bool:
    """True for a run of one policy and one engine that keeps nothing for its trainer: others can have it, too."""
    return config.engine.count == 1 and not _keeping(config) and not config.policies


def _keeping(config: Config) -> list[str]:
    """Return the extensions by which an engine keeps something for the trainer of one run."""
    return [row.extension for row in rows("engine_additions") if row.own_engine and row.wanted(config)]


class SharedEngine:
    """One engine that serves successive runs of one environment."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.model = start_model(config)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # As in a run of its own, which leaves the trainer its part of a GPU that both use.
        placement = plan(config, found_gpus())
        config = placed(config, placement)
        (folder / "config.json").write_text(config.model_dump_json())
        # Each run has its own folder; all of them call this engine.
        share_one_token()
        self.process_group = ProcessGroup(folder)
        self.weights = weights_folder(config, folder)
        """Each run's weights travel in a folder below."""
        for line in remove_deserted(self.weights.parent):
            print_status(line)
        private_folder(self.weights)
        self._claim = claim_weights(self.weights, folder)
        self.child = self.process_group.start(
            "engine",
            [
                *("serve", "engine", "--folder", str(folder), "--model", self.model),
                *("--weights-dir", str(self.weights)),
            ],
            placement.engine_env(0),
            nice=generation_nice(),
        )
        self.process_group.wait_ready(self.child, config.run.start_timeout_s)
        self.before: dict[int, EvalResult | None] = {}
        """Evaluations of the base model by the run's seed, which makes them equal in every run."""

    def reset(self) -> None:
        """Give the engine the base model's weights as version 0."""
        asyncio.run(self.load(Path(self.model)))

    async def load(self, model: Path) -> None:
        """Give the engine the weights of a folder with a model of the same shape, as version 0."""
        # A checkpoint of several ranks has a file of each.
        tensors = {
            k: v for file in sorted(model.glob("*.safetensors")) for k, v in load_file(str(file)).items()
        }
        # Epoch 0: weights of no run, so that any run's own may follow.
        file = write_weights(self.weights, 0, tensors.items(), epoch=0)
        client = EngineClient(self.child.url)
        try:
            for phase in ("weights/prepare", "weights/commit"):
                await client.request(phase, file.to_json())
        finally:
            await client.close()

    def stop(self) -> None:
        self.process_group.stop()
        remove_weights(self.weights, self._claim)


class DeferredEvaluation(PeriodicEvaluation):
    """Keeps the policies that are due, for an evaluation after training."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: list[tuple[int, Path]] = []
        """Versions and the folders of their policies."""

    def tick(self) -> None:
        if self.config.eval.every:
            for version, path in reversed(self._due()):
                self._last = version
                self.kept.append((version, self.folder / "evaluating" / f"step-{version:06d}"))
                pin_policy(path, self.kept[-1][1])

    async def finish(self, timeout_s: float) -> None:
        self.tick()


class AttachedRun(TrainRun):
    """A run on a shared engine."""

    periodic_evaluation: DeferredEvaluation

    def __init__(self, config: Config, folder: RunFolder, shared: SharedEngine) -> None:
        if not may_share(config):
            raise ConfigError(
                "engine.count: must be 1 where runs share an engine, which has one policy and keeps nothing for one of "
                f"them; got {config.engine.count}, further policies: {len(config.policies)}, what keeps something: "
                f"{', '.join(_keeping(config)) or 'nothing'}"
            )
        super().__init__(config, folder)
        self.shared = shared
        self.weights_dir = shared.weights / folder.path.name

    def make_roles(self, model: str) -> Roles:
        return Roles(self.config, self.folder.path, model, self.weights_dir, engines=[self.shared.child])

    def make_periodic_evaluation(self) -> DeferredEvaluation:
        return DeferredEvaluation(self.config, self.folder.path, self.roles.process_group)

    async def _phases(self, tasks: Plan) -> dict[str, Any]:
        stats = await super()._phases(tasks)
        for version, model in self.periodic_evaluation.kept:
            start = time.monotonic()
            await self.shared.load(model)
            if (result := await self._evaluate(f"at version {version} of")) is not None:
                self.periodic_evaluation.record(version, time.monotonic() - start, result.to_json())
        return stats

    async def _evaluated_before(self) -> EvalResult | None:
        seed, known = self.config.run.seed, self.shared.before
        if seed not in known:
            known[seed] = await super()._evaluated_before()
        return known[seed]
