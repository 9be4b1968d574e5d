"""A trainer whose buffer and engines are one script."""

from __future__ import annotations

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.data.codec import encode_group
from asyncrl.errors import UnavailableError
from asyncrl.train.loop.callbacks import Recording
from asyncrl.train.loop.configured import configured
from asyncrl.train.loop.trainer import Trainer
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.weights.publish import PublishReport
from tests.train.contexts import context
from tests.train.factories import group


class Scripted:
    """A source of given batches and a publisher in one, recording the order of calls."""

    def __init__(self, batches, fail_publish_of=None):
        self.batches = [
            None if batch is None else {one.id: encode_group(one) for one in batch} for batch in batches
        ]
        self.fail_publish_of, self.calls, self.dropped = fail_publish_of, [], {}

    def take(self, step, wait_s):
        self.calls.append(("take", step))
        return None if self.batches[step] is None else list(self.batches[step].values())

    def peek(self, step, seen, wait_s):
        self.calls.append(("peek", len(seen)))
        left = [body for name, body in self.batches[step].items() if name not in seen]
        return left[:1], len(left) <= 1

    def commit(self, version):
        self.calls.append(("commit", version))

    def stats(self):
        return {
            "ready": 3,
            "in_flight": 2,
            "dropped_by_reason": self.dropped,
            "admitted": 3,
            "pending": 0,
            "plan_closed": False,
        }

    def publish(self, version, engine):
        if version == self.fail_publish_of:
            raise UnavailableError("no engine took it")
        self.calls.append(("publish", version))
        return PublishReport(version, pause_s=[0.25])

    def gather(self, version, engine):
        return lambda: self.publish(version, engine)


def groups_at(version):
    return [group("a", [0.0, 1.0], version), group("b", [1.0, 0.0], version)]


def make_trainer(
    engine,
    script,
    num_steps=3,
    max_staleness=1,
    on_step=lambda *_: None,
    schedule="partial",
    snapshots=None,
    callbacks=(),
    max_logp_error=0.0,
    wait_timeout_s=5.0,
    **algo,
):
    config = parse_config(
        {
            "model": {"path": "m"},
            "env": {"name": "gridworld"},
            "train": {
                "num_steps": num_steps,
                "learning_rate": 1e-3,
                "warmup_steps": 2,
                "schedule": schedule,
                "max_logp_error": max_logp_error,
            },
            "buffer": {"max_staleness": max_staleness, "wait_timeout_s": wait_timeout_s},
            "algo": algo,
        }
    )
    objective = build_objective(config.algo)
    auxiliary = AuxiliaryModels(objective, [] if snapshots is None else [snapshots])
    callbacks = [*configured(context(config, objective, engine, auxiliary)), Recording(on_step), *callbacks]
    source = script if engine.rank == 0 else None
    return Trainer(config, engine, objective, auxiliary, source, script, callbacks=callbacks)
