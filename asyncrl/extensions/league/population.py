"""Past versions that engines keep as opponents, in the trainer of the policy whose versions they are."""

from __future__ import annotations

from functools import partial

from asyncrl.extensions.league.members import population
from asyncrl.extensions.league.rules.opponents import Population
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import TrainerCallback


class Opponents(TrainerCallback):
    """Says which versions stay."""

    def __init__(self, population: Population, max_staleness: int) -> None:
        self.served = partial(population.served, max_staleness=max_staleness)


def opponents(context: CallbackContext) -> Opponents:
    """Return the callback of a run with `opponents.choose`."""
    found = population(context.config)
    assert found is not None
    return Opponents(found, context.config.buffer.max_staleness)
