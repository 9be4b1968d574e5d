"""What a real step of the real trainer allocates, for predictions to be compared with."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.profiler import ProfilerActivity, profile

from asyncrl.algo.objective import Objective, build_objective
from asyncrl.config import Config
from asyncrl.extensions.planning.training import longest_rows
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained
from asyncrl.train.step.gradient import Step, accumulate, apply
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_settings import StepSettings


def live_bytes() -> int:
    """Return the bytes of all tensors that are alive, on the GPU where there is one."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    sizes = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and not isinstance(one, FakeTensor) and not one.is_meta:
            storage = one.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return the most bytes beyond those alive before that `work` had allocated at once."""
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = top = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        top = max(top, total)
    return top


def measured_step(config: Config, model: str, vocab_size: int) -> dict[str, int]:
    """Load a model, and train three steps of two micro-batches on each rank, with several ranks four; return the peak
    of the loading, and those of the parts of the steps but the first, whichever is least.

    The profiler does not see what another thread frees, as that of a collective may on a busy CPU: what is measured
    of that step from then on is too high, never too low.
    """
    gc.collect()
    before = live_bytes()
    objective = build_objective(config.algo)
    engine, loading = _loaded(config, objective, model)
    auxiliary = load_auxiliary_models(config, objective, engine, model)
    one = longest_rows(config, vocab_size)
    # Rows of two groups count apart, equal though they are.
    group = torch.arange(2 * engine.num_ranks).repeat_interleave(len(one.trajectories))
    batch = dataclasses.replace(one, trajectories=one.trajectories * 2 * engine.num_ranks, group=group)
    settings = StepSettings.of(config)
    rows = list(range(len(batch.trajectories)))

    def prepare() -> None:
        tensors = auxiliary.step_tensors(engine, batch, settings, settings.num_minibatches)
        if objective.needs_values:
            tensors.tensors["returns"] = Ragged.full(batch.counts)
        tensors.tensors["advantages"] = Ragged.full(batch.counts)
        prepared[:] = [
            Step(
                engine, objective, auxiliary, batch, tensors, settings, 1e-6, objective.kl_coef, lambda found: None,
            )
        ]  # fmt: skip

    prepared: list[Step] = []
    found = {"loading": loading}
    parts: dict[str, Callable[[], Any]] = {
        "passes without gradient": prepare,
        "forward and backward": lambda: accumulate(prepared[0], rows),
        "optimizer step": lambda: apply(prepared[0]),
    }
    for number in range(3 if engine.num_ranks == 1 else 4):
        for part, work in parts.items():
            if number == 0:
                # What a step keeps for the next ones is allocated in the first.
                work()
                continue
            gc.collect()
            kept = live_bytes() - before
            peak = kept + peak_bytes(work)
            found[part] = min(peak, found.get(part, peak))
        prepared.clear()
    return found


def _loaded(config: Config, objective: Objective, model: str) -> tuple[TrainEngine, int]:
    """Return the engine, and the most bytes that its device held while it was made."""
    before = live_bytes()
    policy = load_trained(config, objective, model)
    kept = 0
    in_files: list[torch.Tensor] = []
    made: list[TrainEngine] = []
    if config.train.zero_stage == 3:
        gc.collect()
        kept = live_bytes() - before

    def initialize() -> None:
        if config.train.zero_stage < 3 and not torch.cuda.is_available():
            # Where there is a GPU they are moved there now.
            for parameter in policy.parameters():
                in_files.append(parameter.data)
                parameter.data = parameter.data.clone()
        made.append(TrainEngine(policy, config.train, config.model.dtype))

    peak = kept + peak_bytes(initialize)
    # What was caught on the way may still refer to this function.
    in_files.clear()
    return made.pop(), peak
