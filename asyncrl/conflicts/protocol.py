"""How a feature states what it excludes and what it asks for: functions that yield one problem each, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from asyncrl.config_sections import (
    BufferConfig,
    DataConfig,
    EngineConfig,
    EnvConfig,
    EvalConfig,
    ExtensionsConfig,
    LoraConfig,
    ModelConfig,
    PlacementConfig,
    PolicyConfig,
    ReferenceConfig,
    RolloutConfig,
    RunConfig,
    Section,
    SftConfig,
    TrainConfig,
)
from asyncrl.extensions.table import by_name

S = TypeVar("S", bound=Section)


class Recipe(Protocol):
    """The parts of a `Config` that the checks read."""

    def section(self, kind: type[S]) -> S: ...
    @property
    def run(self) -> RunConfig: ...
    @property
    def model(self) -> ModelConfig: ...
    @property
    def env(self) -> EnvConfig: ...
    @property
    def engine(self) -> EngineConfig: ...
    @property
    def placement(self) -> PlacementConfig: ...
    @property
    def rollout(self) -> RolloutConfig: ...
    @property
    def buffer(self) -> BufferConfig: ...
    @property
    def no_signal(self) -> frozenset[str]: ...
    @property
    def numbers(self) -> Mapping[str, tuple[int, int]]: ...
    @property
    def data(self) -> DataConfig: ...
    @property
    def algo(self) -> dict[str, Any]: ...
    @property
    def train(self) -> TrainConfig: ...
    @property
    def lora(self) -> LoraConfig: ...
    @property
    def reference(self) -> ReferenceConfig: ...
    @property
    def eval(self) -> EvalConfig: ...
    @property
    def sft(self) -> SftConfig: ...
    @property
    def extensions(self) -> ExtensionsConfig: ...
    @property
    def policies(self) -> Mapping[str, PolicyConfig]: ...
    @property
    def slots(self) -> int: ...


class ManyPolicies(Recipe, Protocol):
    """A recipe of which the configurations of further policies can be asked for."""

    def policy(self, name: str) -> Recipe: ...
    def shares_engines(self, name: str) -> bool: ...


class Asked(NamedTuple):
    """What a recipe's objective is, and asks of the run."""

    settings: dict[str, Any]
    """The resolved `algo` section."""
    words: frozenset[str]
    """Of `asyncrl.algo.needs.KNOWN`."""


def none(*_: object) -> Iterator[str]:
    """Yield nothing."""
    return iter(())


@dataclass(frozen=True, slots=True)
class Conflicts:
    """A feature's checks, by when they are made. Each yields what is wrong: the key, what is allowed, and why."""

    sections: Callable[[Recipe], Iterator[str]] = none
    """Between keys of different sections, whenever a configuration is read."""
    with_images: Callable[[Recipe], Iterator[str]] = none
    """Where the policy reads images, once its model is known. Yields keys that must be left at their defaults."""
    untried: Callable[[Recipe], Iterator[str]] = none
    """What nobody has run, and no reason is known against. Yields combinations, by their keys."""
    policies: Callable[[ManyPolicies], Iterator[str]] = none
    """Between the recipe's own policy and further ones, each of which is without conflicts."""
    objective: Callable[[Recipe, Asked], Iterator[str]] = none
    """Between the objective and the rest, once import paths can be resolved."""
    policy_objectives: Callable[[ManyPolicies], Iterator[str]] = none
    """Between the objectives of the recipe's own policy and of further ones."""


def ruled_out(when: str, *settings: tuple[str, bool, str, str]) -> Iterator[str]:
    """Yield what is wrong of settings that something rules out: a key, whether its value is wrong, what is allowed and
    why. when: what rules it out."""
    for key, wrong, allowed, why in settings:
        if wrong:
            yield f"{key} must be {allowed} {when}: {why}"


def older_groups(asked: Asked, key: str, given: object, off: str) -> Iterator[str]:
    """Yield what is wrong of a key that brings groups of versions from before the staleness limit.

    off: the value that brings none.
    """
    if given and asked.words & {"snapshots", "baselines", "role_baselines"}:
        yield (
            f"{key}: must be {off} for an objective that tracks the rewards of prompts or roles, or that "
            "reads the log-probabilities of the version that sampled each token: they go back "
            f"buffer.max_staleness versions; got {given}"
        )


def greedy_baseline(asked: Asked, key: str, given: str) -> Iterator[str]:
    """Yield what is wrong of a key by which a group's episodes are rewarded by each other. given: "off" for none."""
    if given != "off" and "greedy" in asked.words:
        yield (
            f"{key} must be 'off' for an objective with a greedy baseline: the greedy episode is in no group, "
            "and its reward is the environment's"
        )


def episodes_of_group(recipe: Recipe, key: str, count: int) -> Iterator[str]:
    """Yield what is wrong of a number of a group's episodes that are played otherwise than the rest of them."""
    if count >= recipe.rollout.group_size and count:
        yield f"{key}: must be below rollout.group_size={recipe.rollout.group_size}, got {count}"
    if count and recipe.env.name in by_name("players"):
        yield f"{key}: must be 0 with env.name={recipe.env.name!r}, which plays its own turns"
