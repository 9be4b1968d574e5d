"""Have a real run scale every role up and down while the pressure changes, and kill what joins and what leaves.

    python scripts/scaling.py [--json OUT] [--folder FOLDER] [key=value ...]

A run of `gridworld_grpo` on this machine may have one or two rollout workers, environment services and engines. Its
environment takes as long for a step as a file says, and its trainer can be held back, so that the run lacks places in
environment services, then workers, then engines, and then nothing. Of each role

    the first process that is started is killed before it serves, and another one joins later
    the first process that leaves is killed while it finishes what it has; then another one joins, and leaves drained

Then every planned task must have been trained in exactly one step or have ended with a reason, no token may be too
old, no log-probability wrong, every death must have been noted, and each engine must have had the newest weights when
it was asked for its first token.

Exit code 0 when all of it holds. Takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import psutil
from chaos import check_ledger, states

from asyncrl.config import load_config
from asyncrl.credentials import authorization
from asyncrl.jsonfile import write_json
from asyncrl.launch.processes.process_group import ManagedProcess
from asyncrl.launch.roles.roles import Roles
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder
from asyncrl.run.json_lines import JsonLines
from asyncrl.run.metrics import read_metrics
from asyncrl.services.buffer.client import BufferClient
from asyncrl.weights.position import read_committed
from testing.leftovers import processes_left

ROLES = ("rollout", "env", "engine")
SETTINGS = (
    "buffer.groups_per_step=2",
    "rollout.group_size=4",
    "rollout.lease_s=120",
    "scale.rollout=[1,2]",
    "scale.env=[1,2]",
    "scale.engine=[1,2]",
    "scale.cooldown_s=4",
    # Half of the eight episodes of one worker wait for a place, a quarter of those that have one for the engine.
    "env.max_sessions=4",
    "engine.max_num_seqs=2",
    "run.silence_timeout_s=600",
    "run.threads=1",
    "sft.episodes=200",
    "sft.steps=20",
    # A policy that forgets how to answer would not use the environment.
    "train.learning_rate=1e-6",
    "eval.tasks=20",
    # The plan is closed when all has been seen.
    "train.num_steps=1000000",
    "env.num_tasks=0",
    "train.checkpoint_every=50",
)
SLOW_S = 1.0
"""What a step of the environment takes while it is the slowest part."""
HELD_S, FREE_S = 20.0, 1.0
"""How long a trainer that is held back stands still, and works in between."""
MOST_ERROR = 1e-3
"""In nats, what rounding may make of a log-probability."""
ENVIRONMENT = f"{Path(__file__).resolve().with_name('paced_gridworld.py')}:PacedGridworld"
PATIENCE_S = 1200.0
"""How long a change may take to come."""


class PressureRun(TrainRun):
    """A run with a thread beside it that changes the pressure and kills processes."""

    def __init__(self, *args: Any, pace: Path) -> None:
        super().__init__(*args)
        self.pace = pace
        self.pressure: Pressure

    def make_roles(self, model: str) -> Roles:
        roles = super().make_roles(model)
        self.pressure = Pressure(roles, self.folder.path, self.pace)
        return roles

    async def _train(self, client: Any, tasks: Any) -> None:
        self.pressure.start()
        try:
            await super()._train(client, _UntilSeen(tasks, self.pressure))
        finally:
            self.pressure.rest()


class _UntilSeen:
    """Tasks for as long as the pressure changes; what waits then is abandoned."""

    def __init__(self, tasks: Any, pressure: Pressure) -> None:
        self.tasks, self.pressure = tasks, pressure

    async def feed(self, client: BufferClient) -> None:
        if self.pressure.seen.is_set():
            await client.close_plan(abandon=True)
        else:
            await self.tasks.feed(client)


class Pressure(threading.Thread):
    """Changes the pressure until every role has come and gone as the module says. failed: why it gave up."""

    def __init__(self, roles: Roles, folder: Path, pace: Path) -> None:
        super().__init__(name="pressure", daemon=True)
        self.roles, self.folder, self.pace = roles, folder, pace
        self.failed = ""
        self.kills: list[dict[str, Any]] = []
        self.joined: list[dict[str, Any]] = []
        """Of engines that have joined: the version that was committed then, their own with their first tokens, and how
        many these were."""
        self._changes = JsonLines(folder / "scaling.jsonl")
        self._noted: list[dict[str, Any]] = []
        self._members: set[str] = set()
        self._begun = time.monotonic()
        """When the number of processes changed last."""
        self.seen = threading.Event()
        """Set when nothing is left to be seen."""
        self._closed = threading.Event()
        self._held = threading.Event()

    def rest(self) -> None:
        """End; the trainer is free again."""
        self._closed.set()
        self.join(30)

    def run(self) -> None:
        holder = threading.Thread(target=self._hold, name="holder", daemon=True)
        holder.start()
        try:
            for kill in (True, False):
                self._up(kill)
                self._down(kill)
        except _Late as error:
            self.failed = str(error)
            print(f"scaling: {error}", flush=True)
        finally:
            self._held.clear()
            self._slow(0.0)
            self.seen.set()
            holder.join(30)

    def _slow(self, seconds: float) -> None:
        # At once: the environment may read it at any time.
        write_json(self.pace, seconds)

    def _up(self, kill: bool) -> None:
        """See a process of each role join, where the first one that is started is killed before it serves."""
        self._held.clear()
        to_kill, missing = set(ROLES) if kill else set(), set(ROLES)
        self._slow(SLOW_S)
        while missing:
            if to_kill and (process := self._joining(to_kill)) is not None:
                self._kill(process, "joining")
                self._event(f"{process.name} has failed to join", failed=process.name)
                to_kill.discard(role_of(process.name))
            elif (event := self._next(what="takes part")) is not None:
                missing.discard(event["role"])
                if event["role"] == "engine":
                    self._first_tokens(event["what"].split()[0])
            # Engines are what is left when environments are fast and there are workers enough.
            self._slow(0.0 if missing == {"engine"} else SLOW_S)
            self._pause(f"a process of {' and '.join(sorted(missing))} joins")

    def _down(self, kill: bool) -> None:
        """See a process of each role leave, in whatever order."""
        self._held.set()
        self._slow(0.0)
        left = set(ROLES)
        while left:
            process = self._wait(self._leaving, f"a process of {' or '.join(sorted(left))} leaves")
            if kill and role_of(process.name) in left:
                self._kill(process, "leaving")
            self._event(f"{process.name} has left", name=process.name)
            left.discard(role_of(process.name))

    def _joining(self, roles: Collection[str]) -> ManagedProcess | None:
        for process in list(self.roles.process_group.processes):
            role = role_of(process.name)
            if role in roles and process not in self.roles.of_role(role) and not process.announced():
                return process
        return None

    def _leaving(self) -> ManagedProcess | None:
        members = [process for role in ROLES for process in self.roles.of_role(role)]
        self._members |= {process.name for process in members}
        for process in list(self.roles.process_group.processes):
            if process.url and process.name in self._members and process not in members:
                return process
        return None

    def _kill(self, process: ManagedProcess, when: str) -> None:
        os.kill(process.popen.pid, signal.SIGKILL)
        self.kills.append({"name": process.name, "when": when})
        print(f"scaling: SIGKILL {process.name}, which is {when}", flush=True)

    def _first_tokens(self, name: str) -> None:
        """Note which weights an engine that has joined has when it has computed something."""
        engine = next(process for process in self.roles.main.engines if process.name == name)
        headers = authorization(self.roles.credentials.bearer("engine"))
        request = urllib.request.Request(f"{engine.url}/asyncrl/v1/state", headers=headers)
        committed = read_committed(self.roles.main.weights_dir)

        def state() -> dict[str, Any] | None:
            with urllib.request.urlopen(request, timeout=10) as reply:
                found: dict[str, Any] = msgpack.unpackb(reply.read())
            return found if found["computed_tokens"] else None

        found = self._wait(state, f"{name} computes its first token")
        self.joined.append(
            {
                "name": name,
                "committed": committed.version if committed is not None else 0,
                "version": found["version"],
                "tokens": found["computed_tokens"],
            }
        )

    def _event(self, awaited: str, /, **fields: Any) -> dict[str, Any]:
        """Wait for a further change of the number of processes that has these values; return it."""
        return self._wait(lambda: self._next(**fields), awaited)

    def _next(self, **fields: Any) -> dict[str, Any] | None:
        """Return the first further change that has these values, None without one; forget those before it."""
        self._noted += self._changes.new()
        while self._noted:
            one = self._noted.pop(0)
            self._begun = time.monotonic()
            if all(value in str(one.get(name)) for name, value in fields.items()):
                return one
        return None

    def _wait(self, condition: Callable[[], Any], awaited: str) -> Any:
        while not (found := condition()):
            self._pause(awaited)
        return found

    def _pause(self, awaited: str) -> None:
        """Raise `_Late` when the run has ended, or nothing has changed for too long."""
        if self._closed.wait(0.05):
            raise _Late(f"the run ended before {awaited}")
        if time.monotonic() - self._begun > PATIENCE_S:
            raise _Late(f"not within {PATIENCE_S:g} s: {awaited}")

    def _hold(self) -> None:
        """Stop and continue the trainer while it is to be held back."""
        while not self._closed.wait(0.1) and not self.seen.is_set():
            if self._held.is_set():
                with stopped(self.roles.main.trainer.popen.pid):
                    self._closed.wait(HELD_S)
                self._closed.wait(FREE_S)


def role_of(name: str) -> str:
    return name.split("-")[0]


class _Late(Exception):
    """What was waited for did not come."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process and its descendants meanwhile."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="where the run's folder will be; a temporary one by default"
    )
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory(prefix="asyncrl-scaling-") as temporary:
        report = scale(args.overrides, (args.folder or Path(temporary)) / "run")
    print(json.dumps(report, indent=2))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    wrong = [name for name, held in report["checks"].items() if not held]
    print(f"scaling: {'failed: ' + ', '.join(wrong) if wrong else 'everything held'}", file=sys.stderr)
    return 1 if wrong else 0


def scale(overrides: Sequence[str], path: Path) -> dict[str, Any]:
    """Run to the end; return the report."""
    pace = path.with_suffix(".pace")
    write_json(pace, 0.0)
    environment = [f"env.name={ENVIRONMENT}", f"env.config={{pace = {json.dumps(str(pace))}}}"]
    config = load_config("gridworld_grpo", [*environment, *SETTINGS, *overrides])
    with RunFolder(path) as folder:
        run = PressureRun(config, folder, pace=pace)
        summary = run.run()
    pressure, changes = run.pressure, JsonLines(path / "scaling.jsonl").refresh()
    records = read_metrics(path)
    error = max(record["logprob_check/error"] for record in records)
    checks = {
        "every role has come and gone": not pressure.failed,
        **check_ledger(path, config.buffer.max_staleness, summary["steps"]),
        "every token is its version's": error < MOST_ERROR and not quarantined(path),
        "engines that join have the newest weights": all(
            one["version"] >= one["committed"] for one in pressure.joined
        ),
        "every death is noted": deaths(changes) == {(one["name"], one["when"]) for one in pressure.kills},
        "no process is left": not processes_left(path),
    }
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}",
        "steps": summary["steps"],
        "train_wall_s": round(summary["train_wall_s"], 1),
        "failed": pressure.failed,
        "checks": checks,
        "changes": [{k: v for k, v in one.items() if k != "time"} for one in changes],
        "kills": pressure.kills,
        "joined": pressure.joined,
        "largest_logprob_error": error,
        "tasks": states(path),
        "restarts": summary["restarts"],
        "eval_after": summary["eval_after"],
    }


def deaths(changes: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return which processes have died by signal, and when, by what the run has noted."""
    joining = {
        (one["failed"].split()[0], "joining") for one in changes if "signal 9" in one.get("failed", "")
    }
    return joining | {(one["name"], "leaving") for one in changes if "signal 9" in one.get("death", "")}


def quarantined(path: Path) -> list[Any]:
    return sqlite3.connect(path / "ledger.sqlite").execute("SELECT worker, reason FROM quarantine").fetchall()


if __name__ == "__main__":
    raise SystemExit(main())
