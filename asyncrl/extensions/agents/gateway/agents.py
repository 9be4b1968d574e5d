"""Agents: a command or a Python callable that gets a task and an episode's key, and reports a reward."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from asyncrl.endpoint import advertised_host
from asyncrl.env.hosting.threads import SessionThread
from asyncrl.env.protocol import MAX_REWARD
from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.agents.gateway.commands import Command
from asyncrl.http_checks import is_loopback
from asyncrl.http_clients import exempting, set_proxies
from asyncrl.import_path import load_object

log = logging.getLogger("asyncrl.rollout")

LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[A-Za-z0-9._:-]*")
CLEANUP_S = 2.0
"""How long a cancelled coroutine is waited for."""
SHOWN_CHARACTERS = 1500
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE")
"""Environment variables that an agent's process inherits; it does not see the worker's secrets."""


@dataclass(frozen=True, slots=True)
class OpenEpisode:
    """An episode an agent can be given."""

    id: str
    key: str
    """Its API key."""
    url: str
    """Address of the gateway; OpenAI's clients take it with `/v1` appended, Anthropic's as it is."""
    reward_key: str = ""
    """Reports rewards over HTTP; for the process that runs the agent, never for programs of the policy."""
    context_tokens: int = 0
    """The longest conversation with its answer; 0 where that is not known."""
    turn_tokens: int = 0
    """The longest answer; 0 for as long as fits."""
    max_calls: int = 0
    """0 for any number."""

    def environment(self) -> dict[str, str]:
        """Environment variables by which the SDKs find gateway and key."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.key,
        }

    @property
    def host(self) -> str:
        """The gateway's host."""
        return urlsplit(self.url).hostname or ""


End = Literal["", "exit", "deadline", "raised", "killed", "not started", "unjudged"]
"""How an agent ended: "exit" by an exit code of its own, "killed" by a signal from outside. "unjudged": nothing
can be said of it, whatever it did."""
NOT_ITS_OWN = (126, 127)
"""Exit codes by which a shell says that a program cannot be started."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent reported at its end."""

    reward: float | None = None
    """None if it reported none; it may have sent rewards over HTTP."""
    success: bool | None = None
    components: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    """Why it failed: its exit code and last output, or its deadline."""
    end: End = ""
    """How it ended where there is a problem."""
    must_ask: bool = False
    """Whether the reward says nothing where no call was ever answered."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What the gateway must know of an agent's program to record its conversations."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """Names of its headers, by what they say: see `client_headers.read_client_headers`."""
    housekeeping: tuple[str, ...] = ()
    """Texts of first messages that only conversations of housekeeping have."""


PLAIN = Recording()


class Agent(Protocol):
    """Runs one episode."""

    recording: Recording

    async def run(self, task: dict[str, Any], episode: OpenEpisode, timeout_s: float) -> Report:
        """Return shortly after `timeout_s` at the latest, whatever the agent does; nothing of it is left running."""
        ...


class CommandAgent:
    """Starts a process for every episode: the task is JSON on its standard input, and the report is the last line
    of its standard output that is a JSON object, `{"reward": 1.0, "success": true, "components": {}}`.

    The episode ends with the command itself: processes that it leaves behind are killed.

    The episode's `reward_key` is passed with the task and not in the environment, which programs of the policy inherit:
    these must not be able to reward themselves.
    """

    recording = PLAIN

    def __init__(
        self, command: Sequence[str], extra: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        self.command = list(command)
        self.extra = dict(extra or {})
        self.cwd = cwd

    async def run(self, task: dict[str, Any], episode: OpenEpisode, timeout_s: float) -> Report:
        inherited = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment = {**inherited, **self.extra, **episode.environment()}
        if set_proxies(environment):
            for name in ("no_proxy", "NO_PROXY"):
                environment[name] = exempting(environment.get(name, ""), episode.host)
        try:
            command = await Command.start(self.command, environment, self.cwd)
        except OSError as error:
            return Report(problem=f"{self.command[0]}: cannot be started: {error}", end="not started")
        try:
            async with asyncio.timeout(timeout_s):
                given = json.dumps({**task, "reward_key": episode.reward_key})
                code = await command.run(given.encode() + b"\n")
        except TimeoutError:
            found = parse_report(_last_object(bytes(command.out)))
            return replace(found, problem=f"the agent did not end within {timeout_s:g} s", end="deadline")
        finally:
            await command.end()
        report = parse_report(_last_object(bytes(command.out)))
        if code != 0:
            words = command.err.decode("utf-8", "replace").strip()[-SHOWN_CHARACTERS:]
            # A shell reports the signal that ended its command as 128 and its number.
            killed = code < 0 or code > 128
            end: End = "killed" if killed else "not started" if code in NOT_ITS_OWN else "exit"
            return Report(report.reward, report.success, report.components, f"exit code {code}: {words}", end)
        return report


class CallableAgent:
    """Calls `function(task, episode)`: a coroutine on the worker's event loop, or a function on a thread of its own.

    It returns a reward, a map like a command's report, or None. A thread cannot be ended from outside: past its
    deadline it continues, but its episode's key is refused, and the worker does not wait for it, even at its exit.
    """

    recording = PLAIN

    def __init__(self, function: Callable[[dict[str, Any], OpenEpisode], Any]) -> None:
        self.function = function
        self.overdue = 0
        """Threads that are still running past their deadline."""

    async def run(self, task: dict[str, Any], episode: OpenEpisode, timeout_s: float) -> Report:
        if inspect.iscoroutinefunction(self.function):
            return await self._run_here(task, episode, timeout_s)
        return await self._run_on_thread(task, episode, timeout_s)

    async def _run_here(self, task: dict[str, Any], episode: OpenEpisode, timeout_s: float) -> Report:
        async def call() -> Report:
            # Inside the task, since one that ends by SystemExit takes the event loop with it.
            try:
                return parse_report(await self.function(task, episode))
            except (Exception, SystemExit) as error:
                return _raised(error)

        work = asyncio.create_task(call())
        try:
            await asyncio.wait({work}, timeout=timeout_s)
            if work.done():
                return work.result()
        finally:
            work.cancel()
            # It may clean up, but one that ignores its cancellation is not waited for.
            await asyncio.wait({work}, timeout=CLEANUP_S)
        return _too_slow(timeout_s)

    async def _run_on_thread(self, task: dict[str, Any], episode: OpenEpisode, timeout_s: float) -> Report:
        call = partial(contextvars.copy_context().run, self.function, task, episode)
        try:
            thread = SessionThread(f"agent {episode.id}")
        except RuntimeError as error:
            overdue = f"{self.overdue} earlier ones are still running past their deadlines"
            raise InfrastructureError(f"no thread for the agent: {error}; {overdue}") from error
        work = thread.submit(call)
        thread.stop()
        # Not cancelled at the deadline: its result shows when the thread has ended after all.
        await asyncio.wait({work}, timeout=timeout_s)
        if not work.done():
            self.overdue += 1
            work.add_done_callback(self._returned)
            log.warning("an agent's function is still running past its deadline; %d are", self.overdue)
            return _too_slow(timeout_s)
        problem = work.exception()
        return parse_report(work.result()) if problem is None else _raised(problem)

    def _returned(self, work: asyncio.Future[Any]) -> None:
        self.overdue -= 1


class AgentElsewhere:
    """An agent that asks a gateway that has joined the run for its episodes. No worker can start it."""

    recording = PLAIN

    async def run(self, task: dict[str, Any], episode: OpenEpisode, timeout_s: float) -> Report:
        raise InfrastructureError(
            "env.config.offered: this run's agents ask a joined gateway for their episodes; a worker starts none"
        )


def _too_slow(timeout_s: float) -> Report:
    return Report(problem=f"the agent did not end within {timeout_s:g} s", end="deadline")


def _raised(error: BaseException) -> Report:
    return Report(problem=f"{type(error).__name__}: {error}"[:SHOWN_CHARACTERS], end="raised")


def load_agent(config: Mapping[str, Any]) -> Agent:
    """Return the agent of `env.config`: `command` with optional `environment` and `cwd`, or `callable`, which is
    `pkg.module:function` or `path/to/file.py:function`, or one elsewhere. Raises `ConfigError`."""
    command, path = config.get("command"), config.get("callable")
    ways = [command is not None, path is not None, bool(config.get("offered"))]
    if sum(ways) != 1:
        raise ConfigError("env.config: an agent needs one of harness, command, callable and offered=true")
    if config.get("offered"):
        return AgentElsewhere()
    if command is not None:
        if (
            not isinstance(command, list | tuple)
            or not command
            or not all(isinstance(c, str) for c in command)
        ):
            raise ConfigError(f"env.config.command: must be a list of texts, got {command!r}")
        return CommandAgent(command, config.get("environment"), config.get("cwd"))
    function = load_object("env.config.callable", path)
    if not callable(function):
        raise ConfigError(f"env.config.callable: {path!r} is not callable")
    return CallableAgent(function)


def gateway_hosts(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return where a worker's own gateway listens, by `env.config`, and the host that its agents are told.

    Raises `ConfigError`.
    """
    bound, told = config.get("gateway_host") or LOOPBACK, config.get("gateway_advertise") or ""
    for key in ("gateway_host", "gateway_advertise"):
        if config.get("gateway") and config.get(key):
            raise ConfigError(
                f"env.config.{key}: must be left out where env.config.gateway names a gateway elsewhere; that one "
                "has --host and --advertise of its own"
            )
    if told and is_loopback(bound):
        raise ConfigError(
            f"env.config.gateway_advertise: nobody reaches a gateway at {told!r} that listens on {bound}; set "
            'env.config.gateway_host, for instance to "0.0.0.0"'
        )
    if not _HOST.fullmatch(told):
        raise ConfigError(
            f"env.config.gateway_advertise: must be a host's name or address without a port, got {told!r}"
        )
    try:
        return bound, advertised_host(bound, told)
    except ConfigError as error:
        raise ConfigError(f"env.config.gateway_advertise: {error}") from error


def parse_report(raw: Any) -> Report:
    """Read what an agent returned or printed; what is wrong with it becomes the report's `problem`."""
    if raw is None:
        return Report()
    given = {"reward": raw} if isinstance(raw, int | float) and not isinstance(raw, bool) else raw
    if not isinstance(given, dict):
        return Report(problem=f"the agent must report a number or a map, got {_shown(raw)}")
    unknown = set(given) - {"reward", "success", "components"}
    reward, success, components = given.get("reward"), given.get("success"), given.get("components") or {}
    if unknown:
        problem = f"report.{min(unknown)}: unknown; allowed: reward, success, components"
    elif reward is not None and not _is_number(reward):
        problem = f"report.reward: must be a number up to ±{MAX_REWARD:g}, got {_shown(reward)}"
    elif success is not None and not isinstance(success, bool):
        problem = f"report.success: must be true or false, got {str(success)[:100]!r}"
    elif not isinstance(components, dict) or not all(
        isinstance(name, str) and _is_number(value) for name, value in components.items()
    ):
        problem = (
            f"report.components: must map names to numbers up to ±{MAX_REWARD:g}, got {_shown(components)}"
        )
    else:
        return Report(None if reward is None else float(reward), success, dict(components))
    return Report(problem=problem)


def _is_number(value: Any) -> bool:
    """Whether it can be a reward. Compared as it is: an integer may be beyond every float."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and -MAX_REWARD <= value <= MAX_REWARD
    )


def _shown(value: Any) -> str:
    """Return the beginning of what was reported. Python does not print integers of thousands of digits."""
    try:
        return repr(str(value)[:100])
    except ValueError:
        return "a huge integer"


def _last_object(out: bytes) -> dict[str, Any] | None:
    for line in reversed(out.splitlines()):
        if line.strip().startswith(b"{"):
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(line)
    return None
