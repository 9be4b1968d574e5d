"""What samples the turns of evaluations in another way than those of training."""

from __future__ import annotations

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.generation import Generator


def evaluation_generator(config: Config, renderer: ChatRenderer, generator: Generator) -> Generator:
    """Return what samples them: `generator`, within whatever the recipe asks for. Raises `ConfigError` for a model with
    which that does not go."""
    for row in rows("evaluation_generators"):
        if row.wanted(config):
            generator = row.load()(config, renderer, generator)
    return generator
