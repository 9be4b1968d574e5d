"""Engines that sleep while the trainer works, in the trainer's process."""

from __future__ import annotations

from asyncrl.endpoint import wait_for_addresses
from asyncrl.extensions.sleep.switch import SleepSwitch
from asyncrl.extensions.sleep.turns import MemoryTurns
from asyncrl.startup import LIMIT_FACTOR
from asyncrl.train.engine.deepspeed_engine import init_distributed, wait_for_all_ranks
from asyncrl.train.loop.callback_context import CallbackContext, TrainerRun


def let_engines_sleep(run: TrainerRun) -> None:
    """Put engines that use the trainer's memory to sleep, before any rank loads a model. A collective."""
    switch = open_switch(run)
    if init_distributed(run.config.rank_timeout_s) == 0:
        switch(True)
    wait_for_all_ranks()


def memory_turns(context: CallbackContext) -> MemoryTurns:
    """Return the callback that begins with sleeping engines."""
    trained = [context.engine, *context.auxiliary.trained_engines.values()]
    return MemoryTurns(trained, open_switch(context))


def open_switch(run: TrainerRun) -> SleepSwitch:
    """Return what wakes a run's engines. Raises `DeadlineError` without their addresses in time."""
    config, given = run.config, run.arguments
    urls = wait_for_addresses(given.engines, LIMIT_FACTOR * config.run.start_timeout_s)
    return SleepSwitch(urls, given.credentials.bearer("engine"), config.outage_timeout_s)
