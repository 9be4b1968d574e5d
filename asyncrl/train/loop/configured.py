"""The callbacks that a configuration asks for: a table of features, each of whose factories stands beside its callback.

A factory takes a `CallbackContext` and returns a `TrainerCallback`, or None on ranks that need none. Those of features
that talk to other processes are in the trainer's folder below `services/`. Nothing is imported of a feature that is not
asked for. Installed packages add callbacks by entry points (`asyncrl.extensions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from asyncrl.import_path import load_object
from asyncrl.train.loop.callback_context import CallbackContext, TrainerRun
from asyncrl.train.loop.callbacks import TrainerCallback


class Feature(NamedTuple):
    """One that has a callback."""

    asked: Callable[[TrainerRun], bool]
    factory: str
    """The import path of what makes its callback."""
    prepare: str = ""
    """The import path of what is called with the run before any rank loads a model."""


FEATURES = (
    Feature(
        lambda run: run.config.placement.sleep is True,
        "asyncrl.services.trainer.memory_turns:memory_turns",
        "asyncrl.services.trainer.memory_turns:let_engines_sleep",
    ),
    Feature(lambda run: True, "asyncrl.train.features.sampled_check:sampled_check"),
    Feature(
        lambda run: run.config.train.old_policy == "interrupt",
        "asyncrl.train.features.scored_versions:interrupting",
    ),
    # Against stronger opponents the reward falls without a collapse, and what an exploiter waits for is none.
    Feature(
        lambda run: (
            run.config.train.collapse_guard and run.config.population is None and not run.arguments.exploits
        ),
        "asyncrl.train.features.collapse_guard:collapse_guard",
    ),
    Feature(lambda run: run.arguments.exploits > 0, "asyncrl.services.trainer.exploiting:exploiting"),
    Feature(
        lambda run: run.config.population is not None and not run.arguments.exploits,
        "asyncrl.train.features.population:opponents",
    ),
    Feature(lambda run: run.config.train.complete_groups, "asyncrl.train.features.success_pool:completion"),
    Feature(lambda run: run.config.train.replay_groups > 0, "asyncrl.train.features.replay_pool:replay"),
    Feature(
        lambda run: run.objective.settings["sft_phase"]["every"] > 0,
        "asyncrl.train.features.sft_phase:sft_phases",
    ),
    Feature(lambda run: True, "asyncrl.train.features.poison:poison_folder"),
    Feature(lambda run: bool(run.config.outer.url), "asyncrl.services.trainer.exchanging:exchanging"),
    Feature(
        lambda run: bool(run.config.swarm.url), "asyncrl.services.trainer.shared_rollouts:shared_rollouts"
    ),
    Feature(lambda run: True, "asyncrl.train.loop.callbacks:stop_file_callback"),
    Feature(lambda run: run.arguments.exploits > 0, "asyncrl.services.trainer.exploiting:minimax"),
)
"""In the order in which the callbacks are called."""


def prepare(run: TrainerRun) -> None:
    """Do what features need before any rank loads a model. A collective."""
    for one in FEATURES:
        if one.prepare and one.asked(run):
            load_object("trainer", one.prepare)(run)


def configured(context: CallbackContext) -> list[TrainerCallback]:
    """Return a run's callbacks: those of its features, then those of other packages. A collective."""
    return [one for one in _made(context) if one is not None]


def _made(context: CallbackContext) -> Iterator[TrainerCallback | None]:
    for one in FEATURES:
        if one.asked(context):
            yield load_object("trainer", one.factory)(context)
    for name, settings in context.config.extensions.trainer_callbacks.items():
        from asyncrl.extensions import TRAINER_CALLBACKS, load_extension

        yield load_extension(TRAINER_CALLBACKS, name)(context, **settings)
