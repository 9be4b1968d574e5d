"""What samples turns in another way than an engine does at once: those of training, and those of evaluations."""

from __future__ import annotations

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.generation import Generator


def training_generator(config: Config, renderer: ChatRenderer, generator: Generator) -> Generator:
    """Return what samples the turns that are trained: `generator`, within whatever the recipe asks for. Raises
    `ConfigError` for a model with which that does not go."""
    return _within("training_generators", config, renderer, generator)


def evaluation_generator(config: Config, renderer: ChatRenderer, generator: Generator) -> Generator:
    """Likewise of the turns of evaluations."""
    return _within("evaluation_generators", config, renderer, generator)


def _within(seam: str, config: Config, renderer: ChatRenderer, generator: Generator) -> Generator:
    for row in rows(seam):
        if row.wanted(config):
            generator = row.load()(config, renderer, generator)
    return generator
