"""The callbacks that a configuration asks for: those of every run, and those of the extensions that it asks for.

A factory takes a `CallbackContext` and returns a `TrainerCallback`, or None on ranks that need none. Nothing is
imported of an extension that is not asked for (`asyncrl.extensions.table`). Installed packages add callbacks by entry
points (`asyncrl.extensions.installed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.extensions.table import Row, merged
from asyncrl.import_path import load_object
from asyncrl.train.loop.callback_context import CallbackContext, TrainerRun
from asyncrl.train.loop.callbacks import TrainerCallback

CORE = (
    Row(path="asyncrl.train.features.sampled_check:sampled_check", place=10),
    Row(path="asyncrl.train.features.poison:poison_folder", place=60),
    Row(path="asyncrl.train.loop.callbacks:stop_file_callback", place=90),
)
"""The callbacks of every run."""
FEATURES = merged("trainer_callbacks", CORE)
"""In the order in which the callbacks are called."""


def prepare(run: TrainerRun) -> None:
    """Do what features need before any rank loads a model. A collective."""
    for one in FEATURES:
        if one.prepare and one.wanted(run):
            load_object("trainer", one.prepare)(run)


def configured(context: CallbackContext) -> list[TrainerCallback]:
    """Return a run's callbacks: those of its features, then those of other packages. A collective."""
    return [one for one in _made(context) if one is not None]


def _made(context: CallbackContext) -> Iterator[TrainerCallback | None]:
    for one in FEATURES:
        if one.wanted(context):
            yield one.load()(context)
    for name, settings in context.config.extensions.trainer_callbacks.items():
        from asyncrl.extensions.installed import TRAINER_CALLBACKS, load_extension

        yield load_extension(TRAINER_CALLBACKS, name)(context, **settings)
