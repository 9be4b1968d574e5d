"""How long a trainer stands still while its versions go to engines behind a slow link, at once and in the background.

    python scripts/bench/bench_publish.py [--steps 6] [--tokens 1024] [--delay-ms 100] [--mbit 10] [--json OUT]

Trainer, ledger, transport and checks are real; groups are made up, and the two engines are those of
`weight_engines`, which load nothing into a model. The link is between the trainer and all engines.
"at once" waits for each version as the trainer does where the next batch cannot be trained meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from report import write_report
from slow_link import SourceBehindLink
from weight_engines import LoadingEngine

from asyncrl.algo.objective import build_objective
from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.config import Config, parse_config
from asyncrl.credentials import own_credentials, share_one_token
from asyncrl.extensions.http_weights.carrier import HttpCarrier
from asyncrl.services.trainer.publisher import SyncFilePublisher
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callbacks import Recording
from asyncrl.train.loop.trainer import Trainer
from asyncrl.train.models.tiny_model import build_model
from asyncrl.train.parts.needed_models import load_trained
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.types import NOT_SAMPLED, Group, Lease, Status, Task, Trajectory, Turn
from asyncrl.weights.carrier import Carried
from asyncrl.weights.publish import FilePublisher, PublishReport

VOCABULARY, CONTEXT = 512, 16
NUM_ENGINES = 2


class AtOnce(SyncFilePublisher):
    """Publishes where it would only copy."""

    def gather(self, version: int, engine: TrainEngine) -> Callable[[], PublishReport]:
        report = self.publish(version, engine)
        return lambda: report


class PlayedAtOnce:
    """The buffer of a run whose workers take no time, for the trainer's threads."""

    def __init__(self, config: Config, num_tokens: int) -> None:
        self._ledger, self._lock = Ledger(":memory:", LedgerSettings.of(config)), threading.Lock()
        self._ledger.add_tasks([Task(f"t{number}", "gridworld") for number in range(1000)])
        self._num_tokens = num_tokens

    def take(self, step: int, wait_s: float) -> Sequence[bytes] | None:
        with self._lock:
            while (lease := self._ledger.lease("w")) is not None:
                self._ledger.put(played(lease, self._num_tokens))
            taken = self._ledger.take(step)
            return (
                None if taken.groups is None else [body for body in taken.groups if isinstance(body, bytes)]
            )

    def commit(self, version: int) -> None:
        with self._lock:
            self._ledger.commit(version)

    def stats(self) -> dict[str, Any]:
        with self._lock:
            return self._ledger.stats()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this run does without {name}")


def played(lease: Lease, num_tokens: int) -> Group:
    """Return made-up episodes for a lease."""
    rng, length = np.random.default_rng(lease.order), CONTEXT + num_tokens
    mask = np.arange(length) >= CONTEXT
    episodes = tuple(
        Trajectory(
            task_id=lease.task.id,
            episode_index=index,
            token_ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
            loss_mask=mask,
            behavior_logprobs=np.where(mask, -6.2, 0.0).astype(np.float32),
            versions=np.where(mask, lease.version, NOT_SAMPLED).astype(np.int32),
            turns=(Turn(CONTEXT, length, float(index % 2), "s"),),
            reward=float(index % 2),
            status=Status.FINISHED,
        )
        for index in range(lease.group_size)
    )
    return Group(lease.id, lease.task, lease.version, episodes, "w")


def measure(
    kind: type[SyncFilePublisher], model: Path, steps: int, num_tokens: int, link: dict[str, float]
) -> dict[str, Any]:
    """Train `steps` steps; return medians over those after the first, in seconds."""
    config = parse_config(
        {
            "model": {"path": str(model), "dtype": "float32"},
            "env": {"name": "gridworld"},
            "engine": {"max_model_len": CONTEXT + num_tokens},
            "rollout": {"group_size": 4},
            "buffer": {"max_staleness": 2, "groups_per_step": 4},
            "train": {"num_steps": steps, "max_logp_error": 0, "collapse_guard": False},
        }
    )
    objective, credentials = build_objective(config.algo), own_credentials()
    engine = TrainEngine(load_trained(config, objective, str(model)), config.train, "float32")
    seen: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncrl-bench-")))
        engines = [LoadingEngine(folder / f"engine-{number}") for number in range(NUM_ENGINES)]
        for one in engines:
            stack.callback(one.close)
        publisher = kind(
            [one.url for one in engines], credentials.bearer("engine"), 0,
            partial(
                FilePublisher, folder / "trainer", transport=Carried(HttpCarrier(SourceBehindLink(credentials, **link)))
            ),
        )  # fmt: skip
        stack.callback(publisher.close)
        source = PlayedAtOnce(config, num_tokens)
        trainer = Trainer(
            config, engine, objective, AuxiliaryModels(objective), source, publisher,
            callbacks=[Recording(lambda _, metrics: seen.append(metrics))],
        )  # fmt: skip
        trainer.run()
    later = seen[1:]
    names = ("time/train_s", "time/wait_s", "time/publish_s", "weights/publish_s", "staleness/mean")
    return {name: round(statistics.median(step[name] for step in later), 3) for name in names} | {
        "stands still": round(sum(s["time/publish_s"] for s in later) / sum(s["weights/publish_s"] for s in later), 3),
        "step_s": round((later[-1]["time"] - seen[0]["time"]) / len(later), 2),
        "staleness_max": max(step["staleness/max"] for step in seen),
        "bytes": seen[-1]["weights/bytes"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=1024, help="sampled in each of a step's 16 episodes")
    parser.add_argument("--delay-ms", type=float, default=100.0, help="there and back")
    parser.add_argument("--mbit", type=float, default=10.0, help="0 for no limit")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    share_one_token()
    link = {"delay_s": args.delay_ms / 2000, "bytes_per_s": args.mbit * 1e6 / 8}
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        build_model(VOCABULARY, 128, 4, 4, 2 * CONTEXT + args.tokens, 0, seed=0).save_pretrained(folder)
        found: dict[str, Any] = {"link": link}
        for name, kind in (("at once", AtOnce), ("in the background", SyncFilePublisher)):
            found[name] = measure(kind, Path(folder), args.steps, args.tokens, link)
        found["load"] = round(os.getloadavg()[0], 1)
    write_report(found, args.json)


if __name__ == "__main__":
    main()
