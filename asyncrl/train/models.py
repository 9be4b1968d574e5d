"""Loads the policy and the other models that an objective needs."""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.config_sections import SELF_TEACHER, is_url
from asyncrl.gpus import check_fused_kernel
from asyncrl.train.auxiliary_models import AuxiliaryModels
from asyncrl.train.auxiliary_weights import (
    AveragedPolicy,
    BasePolicy,
    DividedPolicy,
    FrozenPolicy,
    Snapshots,
)
from asyncrl.train.critic import CriticSettings, make_critic
from asyncrl.train.deepspeed_engine import TrainEngine, divided_loading, engine_for_reading
from asyncrl.train.old_policy import OldPolicies
from asyncrl.train.policy import Matching, PolicyModel, load_frozen, load_policy
from asyncrl.train.scored_versions import ScoredVersions
from asyncrl.train.scoring import EngineScorer
from asyncrl.train.self_teacher import SelfTeacher


def load_trained(config: Config, objective: Objective, model: str) -> PolicyModel:
    """Load the policy, with a value head when a critic shares its trunk."""
    shared = objective.needs_values and objective.settings["value"]["trunk"] == "shared"
    with divided_loading(config.train, config.model.dtype):
        policy = load_policy(
            model, config.model.dtype, config.train.gradient_checkpointing, shared, config.lora, config.run.seed,
            matching(config), config.train.offload_activations,
        )  # fmt: skip
    return _with_kernel(config, policy)


def load_auxiliary_models(
    config: Config,
    objective: Objective,
    engine: TrainEngine,
    model: str,
    old_policies: OldPolicies | None = None,
) -> AuxiliaryModels:
    """Load the models that `objective` reads, each from where the recipe says. Call on every rank.

    old_policies: a process that scores tokens under earlier versions, instead of copies here.
    """
    dtype = config.model.dtype
    average: AveragedPolicy | None = None
    snapshots: Snapshots | OldPolicies | ScoredVersions | None = None
    if "average" in objective.needs:
        copy = _copy(config, model).to(engine.device)
        params = objective.proximal_params
        average = AveragedPolicy(
            copy, **{key: params[key] for key in ("beta", "reset_below") if key in params}
        )
    if "snapshots" in objective.needs:
        keep = config.buffer.max_staleness
        if config.train.old_policy == "interrupt":
            snapshots = ScoredVersions(keep)
        else:
            snapshots = old_policies or Snapshots(_copy(config, model).to(engine.device), keep)
    critic = make_critic(_critic(objective), config.train, model, dtype) if objective.needs_values else None
    return AuxiliaryModels(
        objective,
        reference=_reference(config, model) if objective.needs_reference else None,
        teacher=_teacher(config, engine) if objective.needs_teacher else None,
        average=average,
        snapshots=snapshots,
        critic=critic,
    )


def _critic(objective: Objective) -> CriticSettings:
    value = objective.settings["value"]
    return CriticSettings(
        value["trunk"],
        float(value["learning_rate"]),
        value["warmup_steps"],
        value["steps"],
    )


def _teacher(
    config: Config, engine: TrainEngine
) -> FrozenPolicy | DividedPolicy | EngineScorer | SelfTeacher:
    teacher = config.teacher
    if teacher.path == SELF_TEACHER:
        shape = engine.engine.module.model.config.get_text_config()
        context = getattr(shape, "max_position_embeddings", None)
        return SelfTeacher(max(context or 0, config.max_tokens))
    if is_url(teacher.path):
        return EngineScorer(teacher.path)
    return _fixed(config, lambda: _frozen(config, teacher.path))


def _fixed(config: Config, load: Callable[[], PolicyModel]) -> FrozenPolicy | DividedPolicy:
    """Return a policy whose weights stay as they are, spread over the ranks where the trained one's are."""
    if config.train.zero_stage != 3:
        return FrozenPolicy(load(), offloaded(config))
    with divided_loading(config.train, config.model.dtype):
        read = load()
    return DividedPolicy(engine_for_reading(read, config.train, config.model.dtype))


def _frozen(config: Config, path: str) -> PolicyModel:
    """Load another model than the policy, to be read only."""
    return _with_kernel(config, load_frozen(path, config.model.dtype))


def _with_kernel(config: Config, policy: PolicyModel) -> PolicyModel:
    """Have a policy compute log-probabilities as `train.fused_logprobs` says. Raises `ConfigError`."""
    if config.train.fused_logprobs:
        check_fused_kernel()
        policy.fused = True
    return policy


def offloaded(config: Config) -> bool:
    """True where whole copies are to leave the device between their passes: under ZeRO-3 the policy itself is spread
    over the ranks, since one of them has no room for it, and where others use the memory in between."""
    return config.train.zero_stage == 3 or config.placement.sleep is True


def _copy(config: Config, model: str) -> PolicyModel:
    """Load a copy that can take over the policy's weights; it starts as the policy does."""
    copy = load_frozen(model, config.model.dtype, config.lora, config.run.seed, matching(config))
    return _with_kernel(config, copy)


def matching(config: Config) -> Matching:
    """Return in what the policy's forward passes, and those of its copies, follow its engines."""
    quantization = config.engine.quantization if config.train.quantized_forward else "off"
    return Matching(config.train.router_replay, quantization)


def _read_only(config: Config, model: str) -> PolicyModel:
    """Load the reference's weights: the policy's where the recipe names no others."""
    path = config.reference.path
    return _frozen(config, path) if path else _copy(config, model)


def _reference(config: Config, model: str) -> FrozenPolicy | DividedPolicy | BasePolicy | EngineScorer:
    reference = config.reference
    if is_url(reference.path):
        return EngineScorer(reference.path)
    if config.lora.rank and not reference.path and not reference.refresh_every:
        return BasePolicy()
    if not reference.refresh_every:
        return _fixed(config, lambda: _read_only(config, model))
    return FrozenPolicy(_read_only(config, model), offloaded(config), reference.refresh_every)
