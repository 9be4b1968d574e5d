"""One supervised training from its configuration to a model folder."""

from __future__ import annotations

import hashlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.chat.renderer import ChatRenderer, load_renderer
from asyncrl.config import Config, load_config
from asyncrl.config_sections import IMITATES, SCRIPTED
from asyncrl.env.registry import load_env
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.lora.adapter import adapters
from asyncrl.extensions.supervised.demonstrations import Demonstration, Encoded, demonstrations
from asyncrl.extensions.supervised.episodes import check_run, episodes
from asyncrl.extensions.supervised.examples import (
    Examples,
    Schedule,
    as_text,
    encode_pairs,
    encode_rows,
    encode_verdicts,
    pack,
)
from asyncrl.extensions.supervised.sources import open_rows, run_folder
from asyncrl.extensions.supervised.trainer import LEARNING_RATE, Facts, SupervisedTrainer
from asyncrl.extensions.supervised.verdicts import LABEL
from asyncrl.process_hooks import set_threads
from asyncrl.run.checkpoints import checkpoint_path
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.deepspeed_engine import (
    TrainEngine,
    divided_loading,
    init_distributed,
    leave_distributed,
)
from asyncrl.train.loop.metrics_log import MetricsLog
from asyncrl.train.models.loading import load_policy

REFERENCE = "reference_logp.npy"
"""File of a run with the log-probabilities of whole answers under the model that it started from."""
KEPT = 2
"""Checkpoints."""


def train_supervised(folder: Path) -> Path:
    """Train the model of a run folder's `config.json`, from its newest checkpoint if it has one; return the folder of
    the trained model, the last checkpoint. Every rank calls this.

    Raises `InputError` for rows that cannot be learned from, and `ConfigError` where the rows are others than those the
    checkpoint was trained on.
    """
    config = load_config(folder / "config.json")
    set_threads(config.run.threads)
    init_distributed(config.train.stall_timeout_s)
    model = config.model.path
    renderer = load_renderer(model)
    examples, heldout = read_rows(config, renderer)
    engine = _engine(config)
    first = engine.rank == 0
    checkpointer = Checkpointer(
        folder / "checkpoints", engine, model, every=config.sft.checkpoint_every, keep=KEPT
    )
    metrics = MetricsLog(folder, config.run.tensorboard) if first else None
    trainer = SupervisedTrainer(
        engine, examples.rows, heldout.rows, make_schedule(config, examples.lengths), config.sft,
        config.train.micro_batch_tokens, checkpointer, _digest(examples.rows),
        metrics.write if metrics else lambda *_: None, _say if first else lambda line: None,
    )  # fmt: skip
    _measure_facts(trainer, folder / REFERENCE, examples.marks, heldout.marks)
    step = _resume(trainer, checkpointer)
    if first:
        _say(_heading(config, examples, trainer, step))
        _say(f"sft: the first row, with what is learned in «»:\n{as_text(renderer, examples.rows[0])}")
    with _asked_to_stop() as trainer.stopped:
        taken = trainer.run(step)
        checkpointer.finish(taken, trainer.state_dict(taken))
    if metrics:
        metrics.close()
    if engine.num_ranks > 1:
        leave_distributed()
    if taken < trainer.schedule.num_steps:
        _say(
            f"sft: interrupted after step {taken}, which is saved; go on with: asyncrl sft --resume {folder}"
        )
        raise KeyboardInterrupt
    return checkpoint_path(folder / "checkpoints", taken)


@contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Have a first Ctrl-C, or SIGTERM, end the training after its step; a second one ends it at once."""
    asked: list[int] = []

    def ask(signum: int, frame: object) -> None:
        asked.append(signum)
        if len(asked) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {one: signal.signal(one, ask) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def read_rows(config: Config, renderer: ChatRenderer) -> tuple[Examples, Examples]:
    """Return as tokens the rows that `[sft]` names, and the first held-out ones, if there are any.

    Raises `ConfigError` and `InputError`.
    """
    sft, most = config.sft, max_length(config)
    if (run := run_folder(config)) is not None:
        check_run(run, config.model.path)
        found = list(episodes(run, sft.min_reward, most))
        if not found:
            raise InputError(
                f"sft.data: {run}: no episode of the run is to be learned from; see sft.min_reward"
            )
        return Examples(found[: sft.limit or None], 0), Examples([], 0)
    if sft.data == SCRIPTED:
        return encode_rows(renderer, _scripted(config), most, sft.limit, sft.episodes), Examples([], 0)
    trained, heldout = open_rows(config)
    own: dict[str, Any] = {"kto": encode_verdicts, **dict.fromkeys(IMITATES, encode_rows)}
    encode = own.get(sft.objective, encode_pairs)
    examples = encode(renderer, trained, most, sft.limit, len(trained))
    if examples.marks is not None and not (examples.marks.min() < 0 < examples.marks.max()):
        raise InputError(f"sft.objective: kto needs rows whose {LABEL} is true and rows where it is false")
    return examples, encode(renderer, heldout, most, sft.heldout_rows) if heldout else Examples([], 0)


def max_length(config: Config) -> int:
    """Return the tokens of a row at most."""
    return config.sft.max_length or config.engine.max_model_len


def make_schedule(config: Config, lengths: list[int]) -> Schedule:
    """Return the rows of each step. lengths: [B] tokens of the rows."""
    sft = config.sft
    if sft.objective not in IMITATES:
        bins = [[row, row + 1] for row in range(0, len(lengths), 2)]
    else:
        bins = pack(lengths, max_length(config)) if sft.packing else [[row] for row in range(len(lengths))]
    return Schedule(bins, sft.batch_size, sft.epochs, sft.steps, sft.shuffle, sft.seed)


def _engine(config: Config) -> TrainEngine:
    settings = config.train.model_copy(update={"learning_rate": config.sft.learning_rate or LEARNING_RATE})
    with divided_loading(settings, config.model.dtype):
        policy = load_policy(
            config.model.path, config.model.dtype, settings.gradient_checkpointing,
            changes=adapters(config.lora, config.sft.seed), offload_activations=settings.offload_activations,
        )  # fmt: skip
    return TrainEngine(policy, settings, config.model.dtype)


def _measure_facts(
    trainer: SupervisedTrainer, file: Path, marks: np.ndarray | None, heldout_marks: np.ndarray | None
) -> None:
    """Have an objective that compares know its reference, the model before training, from the first launch of the run
    on. A collective."""
    if not trainer.objective.metrics:
        return
    if not trainer.engine.on_first(file.is_file):
        found = trainer.measure_reference([*trainer.rows, *trainer.heldout])
        if trainer.engine.rank == 0:
            partial = file.with_suffix(".partial.npy")
            np.save(partial, found)
            partial.replace(file)
        trainer.engine.barrier()
    known = np.load(file)
    if len(known) != len(trainer.rows) + len(trainer.heldout):
        raise ConfigError(f"{file}: is of other rows than those that are read now; start another run")
    own, heldout = np.split(known, [len(trainer.rows)])
    trainer.facts = Facts(own, np.zeros_like(own) if marks is None else marks)
    trainer.heldout_facts = Facts(heldout, np.zeros_like(heldout) if heldout_marks is None else heldout_marks)


def _resume(trainer: SupervisedTrainer, checkpointer: Checkpointer) -> int:
    """Restore the newest checkpoint; return the steps taken. A collective."""

    def newest() -> list[str]:
        found = checkpointer.find(trainer.schedule.num_steps)
        return [str(found[1])] if found is not None else []

    paths = trainer.engine.on_first(newest)
    if not paths:
        return 0
    restored = checkpointer.load(Path(paths[0]))
    if restored.extra.get("digest") != trainer.digest:
        raise ConfigError(
            f"{paths[0]}: was trained on other rows than those that are read now; put them back, or start another run"
        )
    return restored.version


def _scripted(config: Config) -> Iterator[tuple[str, Demonstration]]:
    env, sft = config.env, config.sft
    played = demonstrations(
        load_env(env.name), env.name, env.config, sft.episodes, 1.0, sft.seed, sft.concurrency
    )
    for number, demonstration in enumerate(played, 1):
        yield f"scripted episode {number} of {env.name!r}", demonstration


def _digest(rows: list[Encoded]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for row in rows:
        found.update(row.ids.tobytes() + row.mask.tobytes())
    return found.hexdigest()


def _heading(config: Config, examples: Examples, trainer: SupervisedTrainer, step: int) -> str:
    rows = examples.rows
    learned = sum(int(row.mask.sum()) for row in rows)
    text = (
        f"sft: {len(rows)} rows of {sum(examples.lengths) / len(rows):.0f} tokens ({learned / len(rows):.0f} learned), "
        f"longest {max(examples.lengths)}; {trainer.schedule.num_steps} steps"
    )
    if examples.num_long:
        text += f"; {examples.num_long} rows of more than {max_length(config)} tokens are left out"
    return text + (f"; going on after step {step}" if step else "")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
