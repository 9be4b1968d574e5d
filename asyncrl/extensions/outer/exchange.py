"""Trains one policy with other runs, which synchronise seldom: this run's part of an outer optimizer.

    after the step to version k, before k is published, on rank 0:
        fragments whose result is due        their new global weights enter the policy
        fragments that are due to be sent    global weights - own weights  --> service
        with outer.delay = 0                 wait for the result, which enters at once

The service (`services/outer`) takes the outer step on the mean of what the runs sent. With `outer.method = "gossip"` it
takes one step for each pair of runs: what are global weights here are then this run's own slow weights, which the
service has, too. Merging before publishing means
that every version has one set of weights: tokens keep the log-probabilities of the version that sampled them, and
staleness counts this run's own versions as ever. Moments of the inner optimizer stay each run's own.

Rank 0 keeps the global weights it has last merged in float32 in host memory, and what rounding has left of what it
sent. Both are in checkpoints, so a resumed run sends all it has trained since, once: a contribution has this run's
version, and the service counts no version twice.

Sources: DiLoCo (arXiv 2311.08105), Streaming DiLoCo (arXiv 2501.18512), NoLoCo (arXiv 2506.10911).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asyncrl.config import Config
from asyncrl.errors import ConfigError, ConflictError, DeadlineError, InputError, StopError, UnavailableError
from asyncrl.extensions.outer.algo.fragments import split_fragments
from asyncrl.extensions.outer.algo.mean_gradient import pseudo_gradient
from asyncrl.extensions.outer.algo.mix import carried_over, mixed
from asyncrl.extensions.outer.algo.schedule import due_fragments
from asyncrl.extensions.outer.protocol import OuterService
from asyncrl.extensions.outer.settings import OuterConfig
from asyncrl.extensions.outer.tensors import WHOLE_BITS, decode, encode
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.full_state import gather_weights, set_weights
from asyncrl.train.loop.callbacks import TrainerCallback, Verdict
from asyncrl.train.step.step import StepReport
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_settings import StepSettings

log = logging.getLogger("asyncrl.train")

LOOK_S = 2.0
"""How often ranks meet while rank 0 waits for the other runs, or for the service."""
PAUSE_S = 1.0
"""Between two tries to reach a service that does not answer."""
END_S = 15.0
"""How long the end of a run waits for calls that are under way."""
MARGIN_S = 5.0
"""Beyond `outer.wait_timeout_s`, at which the service closes a round: until its result is here."""

Arrays = dict[str, np.ndarray]


class Exchange(Protocol):
    """What the trainer does with other runs. Its calls are collectives."""

    def join(self, engine: TrainEngine) -> bool:
        """Take part; return whether the policy has got other weights by that."""
        ...

    def after_step(self, engine: TrainEngine, version: int) -> dict[str, float]:
        """Exchange what is due after the step to `version`; return metrics."""
        ...

    def leave(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Result(NamedTuple):
    """What came of a contribution."""

    round: int
    weights: Arrays
    members: int
    repeated: bool


@dataclass
class Pending:
    """A contribution whose result has not been merged."""

    version: int
    body: bytes
    sent: Arrays
    """The run's weights that it has."""
    future: Future[Result] | None = None
    overdue: bool = False
    """Whether training went on without its result when that was due."""


@dataclass
class Held:
    """What rank 0 keeps between steps."""

    base: Arrays = field(default_factory=dict)
    """The global weights that were merged last."""
    residual: Arrays = field(default_factory=dict)
    """What rounding has taken from earlier contributions."""
    rounds: list[int] = field(default_factory=list)
    pending: dict[int, Pending] = field(default_factory=dict)


class OuterExchange:
    """Implements `Exchange`. `service` is rank 0's."""

    def __init__(self, config: Config, service: OuterService | None) -> None:
        self.settings = config.section(OuterConfig)
        self.num_steps = config.train.num_steps
        self.start_timeout_s = config.run.start_timeout_s
        self.service = service
        self.held = Held()
        self._fragments: list[dict[str, tuple[int, ...]]] = []
        """Shapes of the parameters of each, by name."""
        self._joined = threading.Event()
        self._closed = threading.Event()
        self._members = 0
        """How many contributed to the newest round that was merged in this step."""
        self._moved_before = (0, 0)
        """Bytes sent and received that metrics have counted."""
        self._sent_at: dict[int, int] = {}

    def join(self, engine: TrainEngine) -> bool:
        """See `Exchange`. The first run that joins gives its weights to all; later ones take the global weights, unless
        they are resumed: these go on with their own until their next exchange.

        Raises `ConfigError` for settings other than those of the other runs, and `DeadlineError` where nobody answers
        within `run.start_timeout_s`; a resumed run goes on alone then, and joins when it can.
        """
        self._divide(engine)
        deadline = time.monotonic() + self.start_timeout_s
        while True:
            found = engine.on_first(lambda: self._register(deadline))
            if found == "wait" or (found == "send" and not self._send_start(engine)):
                continue
            adopted = found == "take" and self._take_start(engine)
            for fragment, one in self.held.pending.items():
                self._submit(fragment, one)
            return adopted

    def after_step(self, engine: TrainEngine, version: int) -> dict[str, float]:
        """See `Exchange`. After the last step all is exchanged, so that runs that end together end with the same
        weights, unless they exchange in pairs. Raises `StopError` when another run has taken this one's place, or has
        other settings."""
        start, last = time.monotonic(), version == self.num_steps
        self._members = 0
        patience = _Patience(self.settings.wait_timeout_s + MARGIN_S, self.service)
        while True:
            found = engine.broadcast(
                self._next(version, last, patience) if self.service is not None else None
            )
            match found["do"]:
                case "merge":
                    self._merge(engine, found["fragment"], found["how"])
                case "send":
                    self._contribute(engine, found["fragment"], version)
                case "stop":
                    raise StopError(found["why"])
                case "done":
                    break
        return self._metrics(time.monotonic() - start) if self.service is not None else {}

    def leave(self) -> None:
        """See `Exchange`. A service that does not answer finds out by itself."""
        self._closed.set()
        wait([one.future for one in self.held.pending.values() if one.future is not None], END_S)
        if self.service is not None:
            try:
                self.service.leave()
            except UnavailableError as error:
                log.warning("the outer optimizer was not told that this run ends: %s", error)
            self.service.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, on rank 0."""
        if self.service is None:
            return {}
        held = self.held
        return {
            "base": _tensors(held.base),
            "residual": _tensors(held.residual),
            "rounds": held.rounds,
            "pending": {
                fragment: {
                    "version": one.version,
                    "body": torch.frombuffer(bytearray(one.body), dtype=torch.uint8),
                    "sent": _tensors(one.sent),
                    "overdue": one.overdue,
                }
                for fragment, one in held.pending.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned. Before `join`."""
        if self.service is None or not state:
            return
        pending = {
            int(fragment): Pending(
                int(one["version"]),
                one["body"].numpy().tobytes(),
                _arrays(one["sent"]),
                overdue=one["overdue"],
            )
            for fragment, one in state["pending"].items()
        }
        self.held = Held(_arrays(state["base"]), _arrays(state["residual"]), list(state["rounds"]), pending)

    def _divide(self, engine: TrainEngine) -> None:
        shapes = {piece.name: piece.shape for piece in engine.pieces}
        sizes = {piece.name: piece.whole_numel for piece in engine.pieces}
        try:
            names = split_fragments(sizes, self.settings.fragments)
        except ValueError as error:
            raise ConfigError(f"outer.fragments: {error}") from error
        self._fragments = [{name: shapes[name] for name in one} for one in names]
        if self.held.base and {name: one.shape for name, one in self.held.base.items()} != shapes:
            raise InputError("checkpoint: the global weights are not of this model")

    def _register(self, deadline: float) -> str:
        """Join on rank 0; return what follows: "send" weights to begin with, "take" the global ones, "keep" those of
        the checkpoint, or "wait" until another run has sent its own."""
        assert self.service is not None
        try:
            joined = self.service.join(self._fragments, LOOK_S)
        except UnavailableError as error:
            if self.held.base:
                log.warning("this run goes on alone until it reaches the outer optimizer: %s", error)
                return "keep"
            if time.monotonic() < deadline:
                return "wait"
            raise DeadlineError(
                f"outer.url: {self.settings.url} does not answer within run.start_timeout_s={self.start_timeout_s:g}: "
                f"{error}"
            ) from error
        self._joined.set()
        if joined.start:
            return "send"
        if self.held.base:
            # A service that has fewer rounds than this run has seen is another one: its weights are taken whole.
            known = zip(self.held.rounds, joined.rounds, strict=True)
            self.held.rounds = [own if own <= theirs else -1 for own, theirs in known]
            return "keep"
        if min(joined.rounds) >= 0:
            return "take"
        # If the run that is to send them falls silent, the service asks this one.
        time.sleep(PAUSE_S)
        return "wait"

    def _send_start(self, engine: TrainEngine) -> bool:
        """Give the other runs the weights to begin with: this run's, or those it had last in common with them. Return
        False where another run has been asked for them meanwhile."""
        local = self._gather(engine, range(len(self._fragments)))
        weights = self.held.base or local

        def send(fragment: int) -> bool:
            assert self.service is not None
            body, _ = encode({name: weights[name] for name in self._fragments[fragment]}, WHOLE_BITS)
            return not self.service.send(fragment, 0, body, start=True).repeated

        if not all(engine.on_first(partial(send, fragment)) for fragment in range(len(self._fragments))):
            return False
        self.held.base, self.held.rounds = weights, [0] * len(self._fragments)
        return True

    def _take_start(self, engine: TrainEngine) -> bool:
        """Take the global weights; return whether they differ from the run's."""

        def fetch(fragment: int) -> None:
            assert self.service is not None
            found = self.service.fetch(fragment, 0, -1, LOOK_S)
            assert found is not None
            self.held.base |= decode(found.body, self._fragments[fragment], WHOLE_BITS)
            self.held.rounds.append(found.round)

        every = range(len(self._fragments))
        for fragment in every:
            engine.on_first(partial(fetch, fragment))
        local = self._gather(engine, every)
        base = self.held.base
        differ = engine.on_first(lambda: any(not np.array_equal(local[name], base[name]) for name in base))
        if differ:
            self._set(engine, every, base)
        return bool(differ)

    def _next(self, version: int, last: bool, patience: _Patience) -> dict[str, Any]:
        """Return what all ranks do next."""
        held, delay = self.held, self.settings.delay
        for fragment, one in held.pending.items():
            if not (last or one.overdue or version >= one.version + delay):
                continue
            assert one.future is not None
            if one.future.done():
                if (error := one.future.exception()) is not None:
                    if not isinstance(error, ConflictError | ConfigError | InputError):
                        raise error
                    return {
                        "do": "stop",
                        "why": f"step {version}: the outer optimizer refuses this run: {error}",
                    }
                how = "take" if one.version == version else "carry" if one.overdue else "mix"
                return {"do": "merge", "fragment": fragment, "how": how}
            if one.overdue and not last:
                continue
            if patience.left():
                wait([one.future], LOOK_S)
                return {"do": "wait"}
            if not one.overdue:
                log.warning(
                    "step %d: no result of the outer optimizer within outer.wait_timeout_s=%g; this run goes on alone",
                    version, self.settings.wait_timeout_s,
                )  # fmt: skip
            one.overdue = True
        every = range(len(self._fragments))
        due = every if last else due_fragments(version, self.settings.every, len(self._fragments))
        for fragment in due:
            if fragment not in held.pending and self._sent_at.get(fragment) != version:
                return {"do": "send", "fragment": fragment}
        return {"do": "done"}

    def _contribute(self, engine: TrainEngine, fragment: int, version: int) -> None:
        """Send what the run has trained since it had the global weights."""
        local = self._gather(engine, [fragment])
        self._sent_at[fragment] = version
        if self.service is None:
            return
        gradient = pseudo_gradient({name: self.held.base[name] for name in local}, local)
        for name in gradient:
            gradient[name] = gradient[name] + self.held.residual.get(name, np.float32(0.0))
        body, read = encode(gradient, self.settings.bits)
        if self.settings.bits != WHOLE_BITS:
            self.held.residual |= {name: gradient[name] - read[name] for name in read}
        self.held.pending[fragment] = Pending(version, body, local)
        self._submit(fragment, self.held.pending[fragment])

    def _submit(self, fragment: int, one: Pending) -> None:
        base = {name: self.held.base[name] for name in self._fragments[fragment]}
        have, future = self.held.rounds[fragment], Future[Result]()

        def run() -> None:
            try:
                future.set_result(self._exchange(fragment, one.version, one.body, base, have))
            except Exception as error:
                future.set_exception(error)

        one.future = future
        # No pool: its threads would keep a trainer that fails from ending.
        threading.Thread(target=run, name=f"outer-fragment-{fragment}", daemon=True).start()

    def _exchange(self, fragment: int, version: int, body: bytes, base: Arrays, have: int) -> Result:
        """Bring a contribution to the service and its result here, however long that takes. In a thread."""
        assert self.service is not None
        shapes, sent = self._fragments[fragment], None
        while not self._closed.is_set():
            try:
                if not self._joined.is_set():
                    self.service.join(self._fragments, LOOK_S)
                    self._joined.set()
                # Once acknowledged it is on the service's disk.
                sent = sent or self.service.send(fragment, version, body)
                found = self.service.fetch(fragment, sent.round, have, LOOK_S)
                if found is None:
                    continue
                if found.kind == "whole":
                    weights = decode(found.body, shapes, WHOLE_BITS)
                else:
                    update = decode(found.body, shapes, self.settings.bits)
                    weights = {name: base[name] - update[name] for name in shapes}
                return Result(found.round, weights, found.members, sent.repeated)
            except UnavailableError as error:
                log.info("fragment %d: %s", fragment, error)
                self._closed.wait(PAUSE_S)
        raise UnavailableError("the run ends")

    def _merge(self, engine: TrainEngine, fragment: int, how: str) -> None:
        """Have the new global weights of a fragment in the policy."""
        local = self._gather(engine, [fragment]) if how != "take" else {}
        merged: Arrays = {}
        if self.service is not None:
            one = self.held.pending.pop(fragment)
            assert one.future is not None
            result = one.future.result()
            merged = result.weights
            if how == "mix":
                merged = mixed(local, result.weights, self.settings.mix)
            elif how == "carry":
                merged = carried_over(local, one.sent, result.weights)
            self.held.base |= result.weights
            self.held.rounds[fragment] = result.round
            if result.repeated:
                # What it had sent then has been counted, with what rounding had left before.
                for name in self._fragments[fragment]:
                    self.held.residual.pop(name, None)
            self._members = result.members
        self._set(engine, [fragment], merged)

    def _gather(self, engine: TrainEngine, fragments: Iterable[int]) -> Arrays:
        names = {name for fragment in fragments for name in self._fragments[fragment]}
        return _arrays(gather_weights(engine, names))

    def _set(self, engine: TrainEngine, fragments: Iterable[int], weights: Mapping[str, np.ndarray]) -> None:
        names = {name for fragment in fragments for name in self._fragments[fragment]}
        set_weights(engine, names, _tensors(weights))

    def _metrics(self, wait_s: float) -> dict[str, float]:
        assert self.service is not None
        moved = (self.service.sent_bytes, self.service.received_bytes)
        sent, received = moved[0] - self._moved_before[0], moved[1] - self._moved_before[1]
        self._moved_before = moved
        found = {
            "outer/round": float(min(self.held.rounds)),
            "outer/alone": float(any(one.overdue for one in self.held.pending.values())),
            "outer/sent_bytes": float(sent),
            "outer/received_bytes": float(received),
            "outer/wait_s": wait_s,
        }
        return found | ({"outer/members": float(self._members)} if self._members else {})


class _Patience:
    """How long a step waits: so many seconds in which not a byte has come or gone."""

    def __init__(self, limit_s: float, service: OuterService | None) -> None:
        self._limit_s, self._service = limit_s, service
        self._since, self._bytes = time.monotonic(), -1

    def left(self) -> bool:
        assert self._service is not None
        moved = self._service.sent_bytes + self._service.received_bytes
        if moved != self._bytes:
            self._since, self._bytes = time.monotonic(), moved
        return time.monotonic() < self._since + self._limit_s


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(one, order="C")) for name, one in arrays.items()}


def _arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: one.numpy() for name, one in tensors.items()}


class Outer(TrainerCallback):
    """Exchanges weights with other runs that train the same policy, on all ranks."""

    name = "outer"
    survives_going_back = True  # What other runs have in common with this one has not gone back.
    waits = True

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def join(self, engine: TrainEngine) -> bool:
        return self.exchange.join(engine)

    def after_step(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, report: StepReport
    ) -> Verdict:
        return Verdict(self.exchange.after_step(engine, batch.step + 1))

    def state_dict(self) -> dict[str, Any]:
        return self.exchange.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exchange.load_state_dict(state)

    def close(self) -> None:
        self.exchange.leave()
