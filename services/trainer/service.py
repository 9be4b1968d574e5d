"""The trainer process (one per rank): builds the engine, runs the steps, writes metrics and checkpoints.

Started by `asyncrl train` as `python -m asyncrl serve trainer --folder runs/NAME ...`, under torchrun when
`train.ranks` is above 1.
"""

from __future__ import annotations

import json
import os
import time

from asyncrl.algo.objective import build_objective
from asyncrl.config import load_config
from asyncrl.endpoint import wait_for_addresses
from asyncrl.process_hooks import set_threads
from asyncrl.services.buffer.client import BufferClientSync
from asyncrl.services.trainer.heartbeat import Heartbeat
from asyncrl.services.trainer.recorder import Recorder, make_checkpointer
from asyncrl.services.trainer.transports import open_publisher
from asyncrl.startup import LIMIT_FACTOR
from asyncrl.tracing import start_tracing, stop_tracing
from asyncrl.train.arguments import TrainerArguments
from asyncrl.train.engine.deepspeed_engine import TrainEngine, init_distributed, leave_distributed
from asyncrl.train.loop.callback_context import CallbackContext, TrainerRun
from asyncrl.train.loop.callbacks import Recording
from asyncrl.train.loop.configured import configured, prepare
from asyncrl.train.loop.recover import recover
from asyncrl.train.loop.trainer import Trainer
from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained


def run_trainer(given: TrainerArguments) -> int:
    """Train one run to its end; return 0. Every rank calls this.

    Raises `DeadlineError` if the engines' addresses are not written in time.
    """
    config = load_config(given.folder / "config.json", checked=True)
    heartbeat = Heartbeat(given.folder / "endpoints" / f"trainer-{os.environ.get('RANK', '0')}.beat")
    set_threads(config.run.threads)
    run = TrainerRun(config=config, objective=build_objective(config.algo), arguments=given)
    init_distributed(config.rank_timeout_s)
    prepare(run)
    engine = TrainEngine(load_trained(config, run.objective, given.model), config.train, config.model.dtype)
    auxiliary = load_auxiliary_models(config, run.objective, engine, given.model, given)
    for other in auxiliary.trained_engines.values():
        other.progress = engine.progress
    first = engine.rank == 0
    if first:
        start_tracing("trainer")
    recorder = Recorder(given.folder, config.run.tensorboard) if first else None
    bearer = given.credentials.bearer("buffer")
    source = BufferClientSync(given.buffer, bearer, config.buffer_outage_s) if first else None
    urls = wait_for_addresses(given.engines, LIMIT_FACTOR * config.run.start_timeout_s) if first else []
    checkpointer = make_checkpointer(given, config, engine, auxiliary, recorder)
    callbacks = configured(
        CallbackContext(
            config=config, objective=run.objective, arguments=given, engine=engine, auxiliary=auxiliary,
            checkpointer=checkpointer,
        )
    )  # fmt: skip
    if recorder is not None:
        callbacks.append(Recording(recorder.on_step, recorder.on_commit))
    served = next((one.served for one in callbacks if one.served is not None), None)
    publisher = open_publisher(
        config, engine, urls, given.weights_dir, given.credentials, given.folder, source, served
    )
    trainer = Trainer(config, engine, run.objective, auxiliary, source, publisher, checkpointer, callbacks)
    publisher.before_commit = trainer.end_work
    if engine.num_ranks != (wanted := given.num_ranks(config)):
        raise RuntimeError(f"there are {engine.num_ranks} ranks, and {wanted} were started")
    start = time.monotonic()
    prefixes = "computed once" if engine.shares_prefixes else "not shared (this model does not support it)"
    print(
        f"trainer: rank {engine.rank} of {engine.num_ranks} is ready; common prefixes are {prefixes}",
        flush=True,
    )
    (given.folder / "endpoints" / f"trainer-{engine.rank}.ready").touch()
    heartbeat.watch(engine.progress, config.rank_timeout_s)
    trainer.begin_work()
    version = trainer.run(recover(trainer, checkpointer, source, publisher))
    wall_s = time.monotonic() - start
    if version or not trainer.stopped:
        trainer.begin_work()
        checkpointer.finish(version, trainer.state_dict())
    trainer.end_work()
    for callback in callbacks:
        callback.close()
    if recorder is not None:
        recorder.close()
    if first and not trainer.stopped:
        totals = trainer.totals.to_dict() | {"version": version, "wall_s": wall_s}
        (given.folder / "trainer.json").write_text(json.dumps(totals))
    publisher.close()
    stop_tracing()
    if source is not None:
        source.close()
    leave_distributed()
    heartbeat.close()
    return 0
