"""An exploiter's trainer: what it tells the policy that it is trained against, and reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from asyncrl.algo.objective import Objective
from asyncrl.config import Config, load_config, parse_config
from asyncrl.extensions.league.exploiter import Exploiter, Exploiting
from asyncrl.extensions.league.minimax import Minimax, MinimaxReward, load_minimax
from asyncrl.extensions.league.settings import ExploiterConfig, OpponentsConfig, as_exploiter
from asyncrl.services.buffer.client import BufferClientSync
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callback_context import CallbackContext


def join_opponents(client: BufferClientSync, versions: Sequence[int]) -> None:
    """Have copies of these versions of the run's exploiter, and no others, be members of the population."""
    client.tell("/v1/opponents", {"versions": list(versions)})


def exploiting(context: CallbackContext) -> Exploiting:
    """Return the callback of an exploiter."""
    config, given = context.config, context.arguments
    exploits = _own_keys(context.engine, given.folder)[1].exploits
    exploiter = Exploiter(exploits, config.section(OpponentsConfig).size)
    if not context.first:
        return Exploiting(exploiter, lambda _: None, False)
    bearer = given.credentials.bearer("buffer")
    main = BufferClientSync(given.main_buffer, bearer, config.buffer_outage_s)
    return Exploiting(exploiter, partial(join_opponents, main), True)


def minimax(context: CallbackContext) -> Minimax | None:
    """Return the callback of an exploiter that the main policy's critic rewards; None where the game does.

    A collective.
    """
    given = context.arguments
    reward = open_minimax(context.config, context.objective, context.engine, given.folder, given.model)
    return Minimax(reward) if reward is not None else None


def open_minimax(
    config: Config, objective: Objective, engine: TrainEngine, folder: Path, model: str
) -> MinimaxReward | None:
    """Return what rewards the turns of an exploiter, whose run folder it is; None where the game does. A collective."""
    main, own = _own_keys(engine, folder)
    if not own.minimax:
        return None
    return load_minimax(config, objective, main, _run_of(folder) / "checkpoints", model)


def _own_keys(engine: TrainEngine, folder: Path) -> tuple[Config, ExploiterConfig]:
    """Return the main policy's configuration, and what it says of the policy whose run folder it is. A collective:
    other ranks may be on machines that have no folder of the main policy."""
    found = engine.on_first(
        lambda: [folder.name, load_config(_run_of(folder) / "config.json").model_dump(mode="json")]
    )
    main = parse_config(found[1], "the main policy's configuration", strict=False)
    return main, as_exploiter(main.policies[found[0]])


def _run_of(folder: Path) -> Path:
    """Return the folder of the run to which that of a further policy belongs."""
    return folder.parent.parent
