"""Runs a harness's program for an episode, in a sandbox where it reaches the gateway alone, and has its work judged.

task -> files in a sandbox of its own -> the program, until it ends or its deadline -> a copy of its folder
     -> a fresh sandbox, where the environment's tests judge the copy -> reward
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from asyncrl.env.protocol import Env, Step
from asyncrl.env.registry import load_env
from asyncrl.env.workspace import PreparedEnv, Workspace, WorkspaceEnv
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError, UnavailableError
from asyncrl.extensions.agents.gateway.agents import (
    NOT_ITS_OWN,
    Agent,
    End,
    OpenEpisode,
    Recording,
    Report,
    gateway_hosts,
    load_agent,
)
from asyncrl.extensions.agents.harness.file import Harness, fill, read_harness
from asyncrl.extensions.agents.harness.program import Installed, install, with_places
from asyncrl.extensions.agents.tasks import source_of
from asyncrl.sandbox.archive import archive
from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.base import PATH
from asyncrl.sandbox.protocol import MIB, WORKDIR, ExecResult, RootFiles, Sandbox, SandboxSpec
from asyncrl.types import Task

log = logging.getLogger("asyncrl.rollout")

HOME = "/tmp/home"
"""The agent's home inside: beside the folder that is judged, and new for each episode."""
MODEL = "policy"
"""What agents call the model; the gateway takes any name."""
OWN_S = 10.0
"""The seconds of an episode's time, for starting sandboxes and for copying what the agent left."""
LEAST_S = 10.0
"""The least time that an agent is given."""
COPY_S = 60.0
KEPT_BYTES = 256 * 1024
"""The bytes that are kept of what the program prints."""
LEFT_BYTES = 256 * MIB
"""The most that an agent may leave: more is judged as nothing."""
PROMPT_BYTES = 100_000
"""The longest text that a program takes as one argument, with room to spare."""
SHOWN_CHARACTERS = 1500
GIT = (
    "command -v git >/dev/null && [ ! -e .git ] && git init -q && git add -A && "
    "git -c user.name=task -c user.email=task@localhost commit -q -m start --allow-empty && echo made"
)
EXIT_CODE = "exit_code"
UNPLAYED = ("not started", "killed")
"""Ends after which nothing more is asked: the episode has failed."""
KILLED = 128
"""Exit statuses above are those of a signal."""


@dataclass(frozen=True, slots=True)
class Played:
    """What the program did."""

    result: ExecResult
    left: bytes
    """Its folder, as a tar archive."""
    whole: bool
    """Whether that is all of it."""


class HarnessAgent:
    """Plays episodes with a harness's program. Implements `gateway.agents.Agent`."""

    def __init__(
        self,
        name: str,
        source: str,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        sandbox: str = "auto",
    ) -> None:
        """name: of the harness. source, config: the environment whose tasks are done, and its settings. environment:
        further variables of the program. Raises `ConfigError`."""
        self.name = name
        self.harness: Harness = read_harness(name)
        self.source, self.config = source_of(source, config)
        self.environment = dict(environment or {})
        self.sandbox = sandbox
        if not issubclass(load_env(self.source, "env.config.tasks"), WorkspaceEnv):
            raise ConfigError(
                f"env.config.tasks: {source!r} gives no folder to work in, which a harness needs; give a folder "
                "of task folders, or an environment such as terminal or repair"
            )
        headers = self.harness.headers.model_dump()
        self.recording = Recording({k: v for k, v in headers.items() if v}, self.harness.housekeeping)
        self.seen: Callable[[ExecResult], None] = lambda result: None
        """Called with how the program ended."""
        self._installed: Installed | None = None
        self._installing = asyncio.Lock()

    def check(self, task: Task, timeout_s: float) -> None:
        """Install the program, and read a task. Raises `ConfigError`, `UnavailableError`."""
        self._installed = install(self.name, self.harness)
        work = self._env(task).workspace()
        needed_s = work.steps * (work.judge_timeout_s + OWN_S + LEAST_S)
        if timeout_s < needed_s:
            raise ConfigError(
                f"rollout.episode_timeout_s: must be at least {needed_s:g}, got {timeout_s:g}: judging may take "
                f"{work.judge_timeout_s:g} s, and the agent needs some time before"
            )

    async def run(self, task: dict[str, Any], episode: OpenEpisode, timeout_s: float) -> Report:
        """See `Agent`. The agent's own deadline leaves the judge its time."""
        ends = time.monotonic() + timeout_s
        try:
            env = await asyncio.to_thread(self._env, _task(task))
            await _prepare(env, timeout_s)
            work = env.workspace()
        except (InfrastructureError, UnavailableError):
            raise
        except Exception as error:
            return _unjudged("harness", error)
        reward, components, begun = 0.0, dict[str, float](), ends - timeout_s
        for left in range(work.steps, 0, -1):
            piece_s = (ends - begun) / left
            report, further = await self._do(env, work, episode, piece_s, begun + piece_s)
            if report.reward is None:
                return report
            reward += report.reward
            for name, value in report.components.items():
                components[name] = value if name == EXIT_CODE else components.get(name, 0.0) + value
            if further is None:
                break
            work, begun = further, time.monotonic()
        return replace(report, reward=reward, components=components)

    async def _do(
        self, env: WorkspaceEnv, work: Workspace, episode: OpenEpisode, timeout_s: float, ends: float
    ) -> tuple[Report, Workspace | None]:
        """Have the program do what is asked once, and judge it, in `timeout_s` and until `ends` on the clock
        `time.monotonic`. Returns what is asked next, too."""
        agent_s = max(LEAST_S, timeout_s - work.judge_timeout_s - OWN_S)
        try:
            played = await self._play(work, episode, agent_s, ends - work.judge_timeout_s - OWN_S / 2)
        except (InfrastructureError, UnavailableError):
            raise
        except Exception as error:
            # Of the task or of the harness: the policy has had no say in it.
            return _unjudged("harness", error), None
        self.seen(played.result)
        ended, problem = _end(played.result, agent_s)
        try:
            step, further = await self._judge(env, work, played)
        except (InfrastructureError, UnavailableError):
            raise
        except Exception as error:
            return _unjudged("judge", error), None
        components = {**step.components, EXIT_CODE: float(played.result.returncode)}
        report = Report(step.reward, step.success, components, problem, ended, must_ask=True)
        return report, None if ended in UNPLAYED else further

    def _env(self, task: Task) -> Any:
        env = load_env(self.source)(replace(task, env=self.source), **self.config)
        assert isinstance(env, Env) and isinstance(env, WorkspaceEnv)
        return env

    async def _play(
        self, work: Workspace, episode: OpenEpisode, timeout_s: float, latest_end: float
    ) -> Played:
        """Run the program for `timeout_s`, less where its sandbox has taken long, and until `latest_end` on the clock
        `time.monotonic`."""
        harness = self.harness
        async with self._installing:
            if self._installed is None:
                self._installed = await asyncio.to_thread(install, self.name, harness)
        values = self._values(work, episode, timeout_s, self._installed.place)
        root = work.judge_spec.root
        if root:
            _check_apart(self._installed, root)
            root = with_places(root, self._installed.mounts)
        address = urlsplit(episode.url)
        port = address.port or (443 if address.scheme == "https" else 80)
        spec = SandboxSpec(
            "bash",
            harness.sandbox_limits(timeout_s),
            self._installed.mounts,
            dict(work.judge_spec.env),
            allow_hosts=(f"{episode.host}:{port}", *work.judge_spec.allow_hosts),
            image=work.judge_spec.image,
            root=root,
        )
        async with await open_sandbox(self.sandbox, spec) as box:
            made_git = await self._furnish(box, work, values)
            given = {
                name: fill(text, values) for name, text in {**harness.environment, **self.environment}.items()
            }
            path = spec.env.get("PATH", PATH)
            path = f"{self._installed.path}:{path}" if self._installed.path else path
            result = await box.exec(
                [fill(part, values) for part in harness.command],
                stdin=fill(harness.stdin, values).encode(),
                timeout_s=max(LEAST_S, min(timeout_s, latest_end - time.monotonic())),
                max_output_bytes=KEPT_BYTES,
                env={"PATH": path, "HOME": HOME, **episode.environment(), **given},
            )
            skipped = ["--exclude=./.git"] if made_git else []
            left = await box.exec(
                ["tar", "-cf", "-", *skipped, "."], timeout_s=COPY_S, max_output_bytes=LEFT_BYTES
            )
            # What the agent made unreadable is not in it, which is its own doing.
            return Played(result, left.stdout, not (left.truncated or left.timed_out))

    async def _furnish(self, box: Sandbox, work: Workspace, values: Mapping[str, Any]) -> bool:
        """Put the task's files and the program's home into a sandbox; return whether a repository was made."""
        home = {path: fill(text, values).encode() for path, text in self.harness.files.items()}
        parts = [(WORKDIR, archive(work.files, work.executable)), (HOME, archive(home))]
        if work.packed:
            parts.insert(0, (WORKDIR, work.packed))
        for folder, data in parts:
            script = f"mkdir -p {folder} && tar -xpf - --no-same-owner -C {folder}"
            made = await box.exec(["sh", "-c", script], stdin=data, timeout_s=COPY_S)
            if not made.ok:
                raise EnvironmentFailure(
                    f"harness: files do not fit into the sandbox: {made.stderr[-500:]!r}"
                )
        if work.setup:
            done = await box.exec(work.setup, timeout_s=COPY_S)
            if not done.ok:
                raise EnvironmentFailure(f"harness: the task's setup failed: {done.stderr[-500:]!r}")
        if not self.harness.git:
            return False
        done = await box.exec(["sh", "-c", GIT], timeout_s=COPY_S, env={"HOME": HOME})
        return done.text.strip().endswith("made")

    def _values(self, work: Workspace, episode: OpenEpisode, timeout_s: float, place: str) -> dict[str, Any]:
        turn = episode.turn_tokens or max(1, episode.context_tokens // 4)
        values: dict[str, Any] = {
            "home": HOME,
            "workdir": WORKDIR,
            "program": place,
            "base_url": episode.url,
            "key": episode.key,
            "model": MODEL,
            "timeout_s": int(timeout_s),
            "context_tokens": episode.context_tokens,
            "turn_tokens": turn,
            "input_tokens": max(1, episode.context_tokens - turn),
            "max_calls": episode.max_calls,
        }
        prompt = fill(self.harness.prompt, {**values, "prompt": work.instruction})
        if len(prompt.encode()) > PROMPT_BYTES:
            raise EnvironmentFailure(f"harness: the instruction has more than {PROMPT_BYTES} bytes")
        return {**values, "prompt": prompt}

    async def _judge(
        self, env: WorkspaceEnv, work: Workspace, played: Played
    ) -> tuple[Step, Workspace | None]:
        """Judge a copy of what the agent left, where none of its processes has ever run. Returns what is asked next,
        too, in the folder as it is then."""
        if not played.whole:
            return Step(done=True, success=False), None
        limits = work.judge_spec.limits
        assert limits is not None
        room = replace(limits, disk_bytes=limits.disk_bytes + 2 * len(played.left))
        async with await open_sandbox(self.sandbox, replace(work.judge_spec, limits=room)) as box:
            await box.exec(["tar", "-xpf", "-", "--no-same-owner"], stdin=played.left, timeout_s=COPY_S)
            step = await env.judge(box)
            if step.done:
                return step, None
            packed = await box.exec(["tar", "-cf", "-", "."], timeout_s=COPY_S, max_output_bytes=LEFT_BYTES)
        if packed.truncated or packed.timed_out:
            return replace(step, done=True, success=False), None
        asked = step.messages[0]["content"]
        return step, replace(
            work, instruction=asked, files={}, executable=frozenset(), packed=packed.stdout, setup=()
        )


def _unjudged(where: str, error: Exception) -> Report:
    return Report(problem=f"{where}: {type(error).__name__}: {error}"[:SHOWN_CHARACTERS], end="unjudged")


def _check_apart(installed: Installed, root: RootFiles) -> None:
    """Raise `EnvironmentFailure` where the program would lie over the task's folder."""
    for mount in installed.mounts:
        shared = os.path.commonpath([mount.target, root.workdir])
        if shared != "/" and shared in (mount.target, root.workdir):
            raise EnvironmentFailure(
                f"harness: the program's folder {mount.target} and the task's {root.workdir} are one inside the other"
            )


async def _prepare(env: object, timeout_s: float) -> None:
    """Make ready what the task needs. Raises `InfrastructureError` where that takes the agent's time."""
    if not isinstance(env, PreparedEnv):
        return
    try:
        async with asyncio.timeout(max(LEAST_S, timeout_s / 2)):
            await env.prepare()
    except TimeoutError as error:
        raise InfrastructureError(f"the task was not made ready within {timeout_s / 2:g} s") from error


def _task(described: Mapping[str, Any]) -> Task:
    """Return the task of an agent's description of it."""
    return Task(*(described[name] for name in ("id", "env", "seed", "split", "data")))


def _end(result: ExecResult, timeout_s: float) -> tuple[End, str]:
    """Return how the program ended, and what was wrong with it; "" for a good end.

    Running out of memory is an outcome: what the policy had its program start counts to the same sandbox.
    """
    words = (result.stderr or result.stdout).decode("utf-8", "replace").strip()[-SHOWN_CHARACTERS:]
    if result.timed_out:
        return "deadline", f"the agent did not end within {timeout_s:g} s"
    if result.out_of_memory:
        return "exit", f"the agent and what it started took more memory than its sandbox has: {words}"
    if result.returncode in NOT_ITS_OWN:
        return "not started", f"exit code {result.returncode}: {words}"
    if result.returncode > KILLED:
        return "killed", f"exit code {result.returncode}: {words}"
    return ("exit", f"exit code {result.returncode}: {words}") if result.returncode else ("", "")


def load_any_agent(config: Mapping[str, Any]) -> Agent:
    """Return the agent of `env.config`: a harness, a command or a callable. Raises `ConfigError`."""
    gateway_hosts(config)
    return load_harness(config) if config.get("harness") else load_agent(config)


def load_harness(config: Mapping[str, Any]) -> HarnessAgent:
    """Return the agent of `env.config.harness`. Raises `ConfigError`."""
    for key in ("command", "callable", "offered", "cwd"):
        if config.get(key):
            raise ConfigError(
                f"env.config.{key}: a harness says itself what runs; give one of harness and {key}"
            )
    if not config.get("tasks"):
        raise ConfigError(
            "env.config.tasks: missing; a harness needs tasks: a folder of task folders, or an environment such as "
            "terminal"
        )
    return HarnessAgent(
        config["harness"],
        config["tasks"],
        config.get("task_config"),
        config.get("environment"),
        config.get("sandbox") or "auto",
    )
