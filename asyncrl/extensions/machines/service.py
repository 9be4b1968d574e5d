"""A node of a run: starts, ends and reports the processes that the launcher asks for.

    asyncrl serve node --launcher http://HEAD:8700 --token-file FILE [--roles engine,env]

The node registers with the launcher, fetches the run's configuration and model from it, and then takes its calls. Its
processes and their files are the node's own: no file system is shared. It ends with the run. When the launcher is
silent for `run.node_timeout_s`, the processes are killed, and the node waits for the launcher to return.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response

from asyncrl import __version__
from asyncrl.config import Config, parse_config
from asyncrl.credentials import VARIABLE, Credentials, role_token, user_folder
from asyncrl.data.codec import pack, unpack
from asyncrl.endpoint import announced_url, route_to
from asyncrl.errors import ConfigError, ConflictError, StopError, UnavailableError
from asyncrl.extensions.machines.client import LauncherClient
from asyncrl.extensions.machines.messages import (
    BEAT_S,
    MAX_LOG_BYTES,
    EndProcess,
    FileEntry,
    PolicyFiles,
    Reach,
    Register,
    Report,
    RunFiles,
    StartProcess,
    checked,
    checked_arguments,
)
from asyncrl.gpus import found_gpus, visible_env
from asyncrl.hosts.host import Start
from asyncrl.hosts.local import LocalHost
from asyncrl.http_checks import MSGPACK
from asyncrl.jsonfile import write_json
from asyncrl.process_start import Process
from asyncrl.run.folder import folder_of, private_folder
from asyncrl.services.http.app import create_app, serve
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.chunks import file_checksum
from asyncrl.weights.folders import (
    check_staged_room,
    claim_weights,
    policy_weights,
    remove_deserted,
    remove_weights,
    room_of,
    weights_folder,
)

UNSEEN_S = 600.0
"""How long a node waits for a launcher that does not answer."""
FIRST_BEAT_S = 1.0
LOOK_EVERY_S = 2.0
WAIT_S = 30.0
REACH_S = 5.0
MODELS = "models"
"""Folder with the models of further policies, by name."""


@dataclass(slots=True)
class _Running:
    start: int
    process: Process
    log: Path
    ready_file: Path
    used: tuple[float, int] = (0.0, 0)
    """CPU seconds, and bytes read and written, when they were last looked at."""
    looked: float = 0.0


@dataclass(frozen=True, slots=True)
class _Policy:
    """Where the files of a policy are here: its folder, its model, and the weights its engines load."""

    folder: Path
    model: str
    weights: Path
    config: Config


class NodeService:
    """One node. `host` starts its processes, in the event loop's thread: they die with it."""

    def __init__(
        self,
        name: str,
        folder: Path,
        credentials: Credentials,
        host: LocalHost,
        roles: Sequence[str],
        launcher: str,
    ) -> None:
        self.name, self.folder, self.credentials, self.host = name, folder, credentials, host
        self.roles = list(roles)
        self.launcher = launcher
        self.url = ""
        self.boot = secrets.token_hex(8)
        self.run = ""
        """The run whose configuration and model are here."""
        self.left = asyncio.Event()
        """Set when the run is over."""
        self._run_folder, self._weights = folder, folder
        self._claim: IO[str] | None = None
        """Held while the run needs its folder of weights."""
        self._policies: dict[str, _Policy] = {}
        """By name."""
        self._running: dict[str, _Running] = {}
        self._starts = 0
        self._heard = time.monotonic()
        self._orphan_s = float("inf")
        """A launcher that has not asked for a report for this long is gone. Its processes are killed: it has them
        started elsewhere soon after."""

    async def register(self) -> None:
        """Register until the run is over. Raises `ConflictError` when the launcher refuses this node, and `StopError`
        when it has not answered for `UNSEEN_S`."""
        client = LauncherClient(self.launcher, self.credentials.bearer("node"))
        answered, reported = time.monotonic(), ""
        try:
            while not self.left.is_set():
                if not self.url:
                    # Set as soon as it serves.
                    await self._pause(FIRST_BEAT_S / 10)
                    continue
                try:
                    wanted = await client.register(self._described())
                    answered, reported = time.monotonic(), ""
                    if wanted and wanted != self.run:
                        await self._prepare(await client.run(), client)
                        continue
                except UnavailableError as error:
                    if time.monotonic() - answered > UNSEEN_S:
                        raise StopError(
                            f"the launcher at {self.launcher} has not answered for {UNSEEN_S:g} s: {error}"
                        ) from error
                    if not reported:
                        reported = str(error)
                        print(f"node {self.name}: waiting for the launcher: {error}", flush=True)
                await self._pause(BEAT_S if self.run else FIRST_BEAT_S)
        finally:
            await client.close()

    async def watch_launcher(self) -> None:
        """Kill the processes of a launcher that is gone, until cancelled."""
        while True:
            alive = [one for one in self._running.values() if one.process.poll() is None]
            if alive and time.monotonic() - self._heard > self._orphan_s:
                print(f"node {self.name}: the launcher is silent; its processes are killed", flush=True)
                # They stay listed: a launcher that was only away for a moment is told of their end.
                for running in reversed(alive):
                    self._kill(running)
            await asyncio.sleep(1.0)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.left.wait(), seconds)

    def _described(self) -> Register:
        return Register(
            name=self.name,
            url=self.url,
            version=__version__,
            boot=self.boot,
            run=self.run,
            gpus=len(found_gpus()),
            roles=self.roles,  # type: ignore[arg-type]
            room=room_of(self._weights) if self.run else 0,
            weights_in=str(self._weights.parent) if self.run else "",
        )

    async def _prepare(self, run: RunFiles, client: LauncherClient) -> None:
        """Fetch what a run needs here. Files of its model that are here already are kept."""
        self.end_all()
        # The same for every run: nothing of one before is left behind, here or in shared memory.
        self._run_folder = self.folder / "run"
        shutil.rmtree(self._run_folder, ignore_errors=True)
        (self._run_folder / "logs").mkdir(parents=True, mode=0o700)
        config = parse_config(run.config, f"the run of {self.launcher}", strict=False)
        self._orphan_s = config.run.node_timeout_s
        self._weights = weights_folder(config, self._run_folder)
        remove_weights(self._weights, self._claim)
        for line in remove_deserted(self._weights.parent):
            print(f"node {self.name}: {line}", flush=True)
        self._policies = {}
        for name, policy in {MAIN_POLICY: run, **run.policies}.items():
            folder = folder_of(self._run_folder, name)
            own = name == MAIN_POLICY
            weights = self._weights if own else Path(policy_weights(str(self._weights), name))
            (folder / "endpoints").mkdir(parents=True, mode=0o700)
            write_json(folder / "config.json", policy.config)
            private_folder(weights)
            if not own and (policy.files, policy.model) == (run.files, run.model):
                model = self._policies[MAIN_POLICY].model
            else:
                model = await self._model_of(name, policy, client)
            recipe = parse_config(policy.config, f"the run of {self.launcher}", strict=False)
            self._policies[name] = _Policy(folder, model, weights, recipe)
        self._claim = claim_weights(self._weights, self._run_folder)
        _keep_only(self.folder / MODELS, run.policies)
        self.run = run.run
        print(f"node {self.name}: ready for {self.run}", flush=True)

    async def _model_of(self, name: str, policy: PolicyFiles, client: LauncherClient) -> str:
        """Return the folder with a policy's model, after fetching what is not here, or the name it is loaded by."""
        if not policy.files:
            return policy.model
        model = self.folder / "model" if name == MAIN_POLICY else self.folder / MODELS / name
        model.mkdir(parents=True, exist_ok=True)
        _keep_only(model, policy.files)
        for file, entry in policy.files.items():
            await self._fetch(client, model / file, entry, name)
        return str(model)

    async def _fetch(self, client: LauncherClient, path: Path, file: FileEntry, policy: str) -> None:
        """Fetch a file, unless it is here already. Raises `UnavailableError`."""
        for _ in range(2):
            if path.exists() and path.stat().st_size == file.size and file_checksum(path) == file.checksum:
                return
            path.unlink(missing_ok=True)
            await client.fetch(path.name, file.size, path, policy)
        if file_checksum(path) != file.checksum:
            raise UnavailableError(f"{path.name}: what the launcher sent is damaged")

    def start(self, body: StartProcess) -> int:
        """Start a process, in place of one of the same name. Raises `ConfigError`, `InputError`, `ConflictError`."""
        if not self.run:
            raise ConflictError(f"node {self.name} has no run yet")
        if body.role not in self.roles:
            raise ConfigError(f"node {self.name} takes {', '.join(self.roles)}, not {body.role}")
        gpus = found_gpus()
        if body.gpus is not None and max(body.gpus, default=-1) >= len(gpus):
            raise ConfigError(f"gpus: node {self.name} has {len(gpus)}, got {body.gpus}")
        if body.name in self._running:
            self._kill(self._running.pop(body.name))
        words = checked_arguments(body.role, body.arguments)
        policy = self._policies.get(body.policy)
        if policy is None:
            raise ConflictError(
                f"node {self.name}: its run has no policy {body.policy!r} of which something runs here"
            )
        if body.role == "engine":
            check_staged_room(policy.config, Path(policy.model), policy.weights)
        own = ["--folder", str(policy.folder)]
        if body.role != "env":
            own += ["--model", policy.model]
        if body.role in ("engine", "trainer"):
            own += ["--weights-dir", str(policy.weights)]
        ready_file = self._run_folder / "endpoints" / f"{body.name}.json"
        if body.role == "trainer":
            for path in (policy.folder / "endpoints").glob("trainer-*.*"):
                path.unlink()
        else:
            ready_file.unlink(missing_ok=True)
            own += ["--ready-file", str(ready_file), *self.host.bind_options]
            own += ["--port", str(body.port)] if body.port else []
        argv = ["serve", body.role, *own, *words]
        env = {VARIABLE: role_token(self.credentials, argv)}
        if body.gpus is not None and gpus:
            env |= visible_env([gpus[number] for number in body.gpus])
        log_file = self._run_folder / "logs" / f"{body.name}.log"
        log_file.unlink(missing_ok=True)
        process = self.host.start(
            Start(body.name, [sys.executable, "-m", "asyncrl", *argv], log_file, ready_file, env, body.nice)
        )
        self._starts += 1
        self._running[body.name] = _Running(self._starts, process, log_file, ready_file)
        return self._starts

    def end(self, body: EndProcess) -> None:
        """End a process; one that is not there has ended already."""
        running = self._running.get(body.name)
        if running is None:
            return
        if body.how == "terminate":
            self.host.note_descendants(running.process)
            running.process.terminate()
        else:
            self._kill(running)

    def _kill(self, running: _Running) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.host.kill(running.process, WAIT_S)

    def end_all(self) -> None:
        """Kill everything."""
        for name in reversed(list(self._running)):
            self._kill(self._running.pop(name))

    def report(self, body: Report) -> dict[str, Any]:
        """Return the state of each process, the ends of their logs, and when trainers last touched their files."""
        self._heard = time.monotonic()
        processes = {}
        for name, running in self._running.items():
            code = running.process.poll()
            url = announced_url(running.ready_file)
            wanted = not url or name in body.measured
            if code is None and wanted and self._heard - running.looked > LOOK_EVERY_S:
                # Only then, and seldom: it means looking at every process of the machine.
                meter = self.host.meter(running.process)
                running.used, running.looked = (meter.cpu_s(), meter.data_bytes()), self._heard
            processes[name] = {
                "start": running.start,
                "code": code,
                "url": url,
                "log": _read_from(running.log, body.logs.get(f"{name}.{running.start}", 0)),
                "cpu_s": running.used[0],
                "data_bytes": running.used[1],
            }
        touched = {name: _touched(policy.folder / "endpoints") for name, policy in self._policies.items()}
        return {"boot": self.boot, "processes": processes, "touched": touched}

    def close(self) -> None:
        """End everything, and remove the weights."""
        self.end_all()
        if self._weights != self.folder:
            remove_weights(self._weights, self._claim)


def _keep_only(folder: Path, names: Mapping[str, object]) -> None:
    """Remove what a folder, which need not be there, holds beside these names."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in names:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _touched(endpoints: Path) -> dict[str, int]:
    """Return when the ranks of a trainer last touched their files, in nanoseconds."""
    found = {}
    for path in endpoints.glob("trainer-*.*"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_mtime_ns
    return found


def _read_from(path: Path, offset: int) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(offset)
        return file.read(MAX_LOG_BYTES)
    return b""


async def _unreachable(url: str) -> str:
    """Return why nothing can be connected to at `url`, "" if it can."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except TimeoutError:
        return f"no answer within {REACH_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""


def create_node_app(node: NodeService, credentials: Credentials) -> FastAPI:
    """Return the HTTP app. Only callers with the run's token may call it."""

    @asynccontextmanager
    async def processes() -> AsyncIterator[None]:
        try:
            yield
        finally:
            node.close()

    async def registering() -> None:
        await node.register()
        app.state.request_exit()
        await asyncio.Event().wait()

    background = {"registration": registering, "launcher watch": node.watch_launcher}
    app = create_app("asyncrl node", credentials.access("node"), background=background, lifespan=processes)

    @app.post("/v1/processes")
    async def start(request: Request) -> dict[str, int]:
        """Start a process."""
        return {"start": node.start(checked(StartProcess, unpack(await request.body())))}

    @app.post("/v1/processes/end")
    async def end(request: Request) -> dict[str, bool]:
        """End a process."""
        node.end(checked(EndProcess, unpack(await request.body())))
        return {"asked": True}

    @app.post("/v1/report")
    async def report(request: Request) -> Response:
        """What the processes do."""
        content = pack(node.report(checked(Report, unpack(await request.body()))))
        return Response(content, media_type=MSGPACK)

    @app.post("/v1/reach")
    async def reach(request: Request) -> dict[str, dict[str, str]]:
        """Which of these addresses this node cannot reach."""
        urls = checked(Reach, unpack(await request.body())).urls
        found = await asyncio.gather(*(_unreachable(url) for url in urls))
        return {"unreachable": {url: why for url, why in zip(urls, found, strict=True) if why}}

    @app.post("/v1/port")
    async def port() -> dict[str, int]:
        """A port that nothing on this machine listens on."""
        return {"port": node.host.free_port()}

    @app.post("/v1/leave")
    async def leave(request: Request) -> dict[str, bool]:
        """The run is over."""
        node.end_all()
        node.left.set()
        return {"left": True}

    return app


def serve_node(
    launcher: str,
    name: str,
    roles: Sequence[str],
    credentials: Credentials,
    host: str = "",
    port: int = 0,
    ready_file: str | Path | None = None,
    advertise: str = "",
) -> None:
    """Be a node of the launcher's run until that is over, or a signal ends it.

    host: where it and its processes listen, "" for this machine's address on the way to the launcher. Raises
    `ConfigError`, `ConflictError` when the launcher refuses it, `StopError` when it does not answer.
    """
    host = host or route_to(urlsplit(launcher).hostname or "")
    folder = user_folder() / "nodes" / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(folder, name):
        bind_options = ["--host", host, *(["--advertise", advertise] if advertise else [])]
        node = NodeService(name, folder, credentials, LocalHost(bind_options), roles, launcher)

        def serving(url: str) -> None:
            node.url = url
            print(f"node {name}: at {url}", flush=True)

        app = create_node_app(node, credentials)
        serve(app, host, port, ready_file, serving=serving, advertise=advertise)


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[IO[str]]:
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"--name {name}: a node of this name runs on this machine already (its files are in {folder}); "
                "choose another name"
            ) from error
        yield lock
