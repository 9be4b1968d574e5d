"""What work takes on GPUs, from data sheets: a first estimate, until a run gives better numbers (`calibrate`).

Decoding reads the weights and the cache once an iteration, and multiplies meanwhile; prefill and training are bound by
multiplications. How much of a GPU's figures real kernels reach is chosen in one place here, so that published rates of
engines come out (`PUBLISHED` in the tests of this module, docs/planning.md). The trainer's are assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.algo.batch_passes import BatchPasses
from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.config import Config
from asyncrl.config_sections import is_url
from asyncrl.errors import ConfigError
from asyncrl.extensions.distillation.settings import TeacherConfig
from asyncrl.extensions.planning.architectures import architecture
from asyncrl.extensions.planning.engine_memory import GIB, engine_memory
from asyncrl.extensions.planning.model_size import model_size
from asyncrl.extensions.simulation.costs import Costs, EngineCosts, TrainerCosts


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its data sheet has it."""

    flops: float
    """Dense bfloat16 operations a second."""
    bandwidth: float
    """Bytes a second from its memory."""
    memory: int
    """Bytes."""


GPUS = {
    "a100-40": Gpu(312e12, 1.555e12, 40 * GIB),
    "a100-80": Gpu(312e12, 2.039e12, 80 * GIB),
    "rtx4090": Gpu(165e12, 1.008e12, 24 * GIB),
    "l40s": Gpu(362e12, 0.864e12, 48 * GIB),
    "h20": Gpu(148e12, 4.0e12, 96 * GIB),
    "h100": Gpu(989e12, 3.35e12, 80 * GIB),
    "h200": Gpu(989e12, 4.8e12, 141 * GIB),
    "b200": Gpu(2250e12, 7.7e12, 180 * GIB),
}
DECODING = 0.85
"""Share of the bandwidth that decoding reaches."""
PREFILL = 0.6
"""Share of the operations that the products of an engine reach."""
TRAINING = 0.35
"""Share of the operations that training reaches."""
LAUNCH_S = 0.001
"""Fixed part of an iteration of an engine, most of whose launches are in a graph."""
SEQUENCE_S = 3e-6
"""The time of the scheduler and the sampler, for each running sequence; most of the scheduler's work is done
meanwhile."""
WRITE = 0.6e9
"""Bytes a second in which a version is published: copied to host memory, written, checked. Measured on an H200 beside
other runs (docs/performance.md), before the copy had pinned memory and the file several threads."""
READ = 2e9
"""Bytes a second in which an engine takes it over, paused. Measured as that."""
MOVED = 10e9
"""Bytes a second in which a GPU's states go to host memory or come back."""
STEP_S = 1.0
"""Fixed part of a training step: its batch, its optimizer steps, its metrics."""
STATE_BYTES = 18
"""The bytes of a trained weight: bfloat16, its float32 master and two moments, the gradient in float32."""
USABLE = 0.85
"""Share of a GPU's memory that weights and states may take, leaving the rest to activations or a cache."""
SPLIT, TURNS = 0.9, 0.7
"""`engine.gpu_memory_utilization` on GPUs of an engine's own, and where trainer and engine use them by turns."""


def gpu_costs(
    config: Config, gpu: Gpu, trainer_gpus: int, tensor_parallel: int, by_turns: bool
) -> Costs | None:
    """Return what work takes; None where weights and states do not fit these GPUs.

    The sums of memory here are short ones; `asyncrl plan memory` has them in full. Raises `ConfigError`.
    """
    described = architecture(config, "model.path", config.model.path)
    size, element = model_size(described), 2 if config.model.dtype == "bfloat16" else 4
    weights = size.parameters * element
    share = TURNS if by_turns else SPLIT
    memory = engine_memory(
        described, weights, gpu.memory, share, tensor_parallel, config.engine.max_num_seqs, element
    )
    trained = STATE_BYTES * size.parameters if not config.lora.rank else weights
    sharded = trained / trainer_gpus if config.train.zero_stage == 3 else weights + trained / trainer_gpus
    if not memory.holds(config.engine.max_model_len) or sharded > USABLE * gpu.memory:
        return None
    read = gpu.bandwidth * DECODING
    token_s = 2 * size.active / tensor_parallel / (gpu.flops * PREFILL)
    engine = EngineCosts(
        iteration_s=LAUNCH_S,
        weights_s=memory.weights / read,
        product_s=token_s,
        experts_s=memory.weights / read * size.experts / size.parameters,
        expert_share=size.expert_share,
        sequence_s=SEQUENCE_S,
        context_token_s=memory.kv_per_token / read,
        prefill_token_s=token_s,
        max_num_seqs=config.engine.max_num_seqs,
        kv_tokens=memory.kv_tokens,
    )
    trainer = TrainerCosts(
        token_s=operations(config) * size.active / (gpu.flops * TRAINING * trainer_gpus),
        step_s=STEP_S,
        publish_s=weights / WRITE,
        swap_s=weights / tensor_parallel / READ,
    )
    moved = STATE_BYTES * size.parameters / trainer_gpus / MOVED
    return Costs(engine, trainer, by_turns=by_turns, turn_s=moved if by_turns else 0.0)


def operations(config: Config) -> float:
    """Return the operations of a step for each parameter and token: 2 for each pass forward, 4 for one backward.

    The pass that compares log-probabilities reads a row of each group (`train/features/logprob_check`), which is enough
    for the tokens that it samples. Forward alone go, too, those by which the objective reads other models or
    the policy as it was before the step, but for a reference or a teacher that is served elsewhere. A critic with a
    trunk of its own is taken to be as large as the policy, and what is asked for the right answer before each turn as
    long as the batch.
    """
    train, settings = config.train, resolve_settings(config.algo)
    words, passes = needed(settings), BatchPasses.of(settings, train.num_minibatches)
    learning = 6 + 2 * train.gradient_checkpointing
    forward = [
        passes.policy,
        passes.answers,
        # In parts, before each optimizer step; before the only one the policy has not moved yet.
        "ratio_statistics" in words and (passes.policy or "step_start" not in words),
        "reference" in words and not is_url(config.reference.path),
        bool(words & {"teacher", "teacher_logits"}) and not is_url(config.section(TeacherConfig).path),
        "average" in words,
        "snapshots" in words,
    ]
    compared = (train.max_logp_error > 0) / config.rollout.group_size
    found = learning + 2 * (sum(forward) + compared) + 6 * passes.score_norms
    critic = settings["value"]
    if passes.values and critic["trunk"] == "own":
        found += critic["steps"] * (learning + 2)
    return found


def gpu_named(name: str) -> Gpu:
    """Return a GPU by its name. Raises `ConfigError`."""
    if name.lower() not in GPUS:
        raise ConfigError(f"--device: must be one of {', '.join(GPUS)}, got {name!r}")
    return GPUS[name.lower()]
