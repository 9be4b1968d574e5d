"""Loads the policy and the other models that an objective needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.gpus import check_fused_kernel
from asyncrl.train.arguments import TrainerArguments
from asyncrl.train.engine.deepspeed_engine import TrainEngine, divided_loading, engine_for_reading
from asyncrl.train.models.loading import load_frozen, load_policy
from asyncrl.train.models.policy import PolicyModel
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.part_table import PartContext, made

if TYPE_CHECKING:
    from asyncrl.train.models.forward_change import ForwardChange
    from asyncrl.train.parts.frozen import DividedPolicy, FrozenPolicy


def load_trained(config: Config, objective: Objective, model: str) -> PolicyModel:
    """Load the policy, with the heads that what the objective reads has on its trunk."""
    heads = {row.name: row.load() for row in rows("trunk_heads") if row.wanted(objective)}
    with divided_loading(config.train, config.model.dtype):
        policy = load_policy(
            model, config.model.dtype, config.train.gradient_checkpointing, heads,
            forward_changes(config), config.train.offload_activations,
        )  # fmt: skip
    return _with_kernel(config, policy)


def load_auxiliary_models(
    config: Config,
    objective: Objective,
    engine: TrainEngine,
    model: str,
    arguments: TrainerArguments | None = None,
) -> AuxiliaryModels:
    """Load the models that `objective` reads, each from where the recipe says. Call on every rank.

    arguments: of the trainer's process, which may talk to others. Raises `DeadlineError` where one of these does not
    start in time.
    """
    context = PartContext(config=config, objective=objective, engine=engine, model=model, arguments=arguments)
    return AuxiliaryModels(objective, made(context))


def load_still(config: Config, load: Callable[[], PolicyModel]) -> FrozenPolicy | DividedPolicy:
    """Return a policy whose weights stay as they are, spread over the ranks where the trained one's are."""
    from asyncrl.train.parts.frozen import DividedPolicy, FrozenPolicy

    if config.train.zero_stage != 3:
        return FrozenPolicy(load(), offloaded(config))
    with divided_loading(config.train, config.model.dtype):
        read = load()
    return DividedPolicy(engine_for_reading(read, config.train, config.model.dtype))


def load_other(config: Config, path: str) -> PolicyModel:
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


def load_copy(config: Config, model: str) -> PolicyModel:
    """Load a copy that can take over the policy's weights; it starts as the policy does."""
    copy = load_frozen(model, config.model.dtype, forward_changes(config))
    return _with_kernel(config, copy)


def forward_changes(config: Config, of_records: bool = True) -> tuple[ForwardChange, ...]:
    """Return what changes the policy and its copies: in what their passes follow the engines, and what is trained.

    of_records: False leaves out what follows records of each token, where there are none.
    """
    found: list[ForwardChange] = [row.load()(config) for row in rows("forward_changes") if row.wanted(config)]
    return tuple(one for one in found if of_records or not one.follows_records)
