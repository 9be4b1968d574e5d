"""`asyncrl env check agent`: episodes of a harness's real program against a scripted policy, on this machine.

The gateway, the sandbox, the judge and the program are those of a run; the engine alone is a script
(`harness.scripted_policy`). So a new version of a program that breaks the protocol shows at once.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.chat.tool_formats import load_format
from asyncrl.config import Config, parse_config
from asyncrl.console import shown
from asyncrl.env.host import end_launcher
from asyncrl.errors import ConfigError
from asyncrl.extensions.agents.gateway.agent_player import LocalHost
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.extensions.agents.harness.agent import HarnessAgent, load_harness
from asyncrl.extensions.agents.harness.file import read_harness
from asyncrl.extensions.agents.harness.scripted_policy import CHAT_TEMPLATE, PICTURE, Faults, ScriptedPolicy
from asyncrl.extensions.agents.players import Agents
from asyncrl.extensions.agents.tasks import AGENT
from asyncrl.extensions.env_tools.check import Finding
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.sandbox.protocol import ExecResult
from asyncrl.scratch import scratch_folder
from asyncrl.types import Status, Task, Trajectory

CONTEXT = 400_000
"""Tokens, of which nearly each is a character: more than any agent's prompt."""
ROOM = 40_000
"""What the overflow leaves beside the longest context of the plain repair."""
FILLS = 24
"""Results that fill it: enough for agents that show 2,000 characters of each."""
TURN = 8192
TIMEOUT_S = 900.0
"""An episode's time, beside its slow turn."""
SLOW_S = 20.0
"""Longer than the gateway is ever silent."""
SHOWN_CHARACTERS = 600
UNMET = {
    "fails": "no call failed",
    "slow_s": "no turn was slow",
    "picture": "it has no tool that shows a picture",
    "fills": "it has no tool that fills its context",
}
"""What is said where an agent has not met a fault, by its field of `Faults`."""
NEEDED = {"fails", "slow_s"}
"""Those that every agent meets."""

TASK = {
    "instruction.md": "test_calc.py fails. Repair calc.py in /app so that it passes.\n",
    "environment/calc.py": "def add(a, b):\n    return a - b\n",
    "environment/test_calc.py": "from calc import add\n\nassert add(2, 3) == 5\n",
    "tests/test_outputs.py": (
        "import subprocess\n\n\ndef test_add():\n"
        "    code = 'import sys; sys.path.insert(0, \".\"); from calc import add; assert add(20, 3) == 23'\n"
        "    assert subprocess.run(['python3', '-c', code]).returncode == 0\n"
    ),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One episode, and what goes wrong in it."""

    name: str
    faults: Faults
    must_solve: bool = True
    """Otherwise it is enough that its outcome is trained."""
    overflows: bool = False


def scenarios(slow_s: float = SLOW_S) -> list[Scenario]:
    """Return all scenarios; the first is the plain repair."""
    return [
        Scenario("repairs a repository", Faults()),
        Scenario("goes on after an answer of 502", Faults(fails=1)),
        Scenario(f"waits for a turn of {slow_s:g} s", Faults(slow_s=slow_s)),
        Scenario("sees a picture that the model cannot read", Faults(picture=True)),
        Scenario("has an outcome when its context is full", Faults(fills=FILLS), False, True),
    ]


def check_agent_program(
    config: dict[str, Any],
    told: Callable[[Finding], None] = lambda finding: None,
    slow_s: float = SLOW_S,
    repair_only: bool = False,
) -> list[Finding]:
    """Play one episode for each scenario, and tell of each when it has ended. A repair that fails ends the check.

    slow_s: the seconds of the slow turn. repair_only: leave out the scenarios in which something goes wrong.

    Raises `ConfigError` for settings that are wrong, `UnavailableError` where the program cannot be installed.
    """
    if not config.get("harness"):
        raise ConfigError("env check agent: give a harness, such as --config '{harness = \"bash\"}'")
    read_harness(config["harness"])
    with scratch_folder("check") as folder, asyncio.Runner() as runner:
        _write_task(folder)
        settings = {**config, "tasks": f"{folder}/tasks"}
        found = load_harness(settings)
        task = Task("adder", AGENT, 0, "train", {"folder": f"{folder}/tasks/adder"})
        found.check(task, TIMEOUT_S)
        try:
            chosen = scenarios(slow_s)[: 1 if repair_only else None]
            return runner.run(_play_all(settings, task, told, chosen))
        finally:
            runner.run(end_launcher())


def check_program(given: argparse.Namespace) -> int:
    """Run the command, as parsed by `asyncrl env check`; return its exit code."""

    def tell(finding: Finding) -> None:
        print(shown(f"  {'ok' if finding.ok else 'FAILED':8s}{finding.name}: {finding.seen}"), flush=True)

    print(f"{AGENT}: {given.config.get('harness', '')}", flush=True)
    slow_s = SLOW_S if given.slow_turn_s is None else given.slow_turn_s
    findings = check_agent_program(given.config, tell, slow_s)
    return int(not all(finding.ok for finding in findings))


async def _play_all(
    settings: dict[str, Any], task: Task, told: Callable[[Finding], None], chosen: Sequence[Scenario]
) -> list[Finding]:
    renderer = ChatRenderer(_tokenizer())
    findings, longest = [], CONTEXT - ROOM
    for number, scenario in enumerate(chosen):
        limit = longest + ROOM if scenario.overflows else CONTEXT
        finding, seen = await _play(settings, task, scenario, renderer, limit)
        findings.append(finding)
        told(finding)
        if number == 0:
            longest = seen
            if not finding.ok:
                break
    return findings


async def _play(
    settings: dict[str, Any], task: Task, scenario: Scenario, renderer: ChatRenderer, limit: int
) -> tuple[Finding, int]:
    """Return what one episode shows, and the tokens of its longest context."""
    policy = ScriptedPolicy(renderer.tokenizer, limit, replace(scenario.faults))
    timeout_s = TIMEOUT_S + scenario.faults.slow_s
    agents = Agents(
        _config(settings, limit, timeout_s), policy, renderer, load_format("hermes", "", renderer)
    )
    watched = _Watched(agents.episodes)
    agents.local = agents.host = watched
    ends: list[ExecResult] = []
    assert isinstance(agents.agent, HarnessAgent)
    agents.agent.seen = ends.append
    await agents.start()
    start = time.monotonic()
    try:
        request = EpisodeRequest(task, 0, "check", timeout_s=timeout_s)
        trajectories = await agents.player(1.0, None).play(request)
    finally:
        await agents.close()
    return _judge(
        scenario, policy, watched.seen, trajectories, ends, time.monotonic() - start
    ), policy.longest


def _judge(
    scenario: Scenario,
    policy: ScriptedPolicy,
    episodes: list[Episode],
    trajectories: tuple[Trajectory, ...],
    ends: list[ExecResult],
    wall_s: float,
) -> Finding:
    first = trajectories[0]
    turns, wrong = policy.wrong_turns(trajectories)
    refusal = next((e.refusal for e in episodes if e.refusal), "")
    trained = sum(bool(t.loss_mask.any()) for t in trajectories)
    missed = [name for name in UNMET if getattr(scenario.faults, name) and name not in policy.happened]
    empty = "fills" in policy.happened and policy.longest < policy.max_model_len - ROOM // 2
    ok = first.status is not Status.FAILED and wrong == 0 and turns > 0 and not (NEEDED & {*missed} or empty)
    if scenario.must_solve:
        ok = ok and first.reward == 1.0 and first.status is Status.FINISHED and not refusal
    seen = (
        f"reward {first.reward:g}, {first.status}, {policy.calls} calls, {turns} turns, {wrong} not as sampled, "
        f"{trained} of {len(trajectories)} conversations trained, {policy.longest} tokens, {wall_s:.0f} s"
    )
    if ignored := sorted({k for e in episodes for k in e.counters if k.startswith("ignored: ")}):
        seen += f"; {', '.join(ignored)}"
    seen += "".join(f"; {UNMET[name]}" for name in missed) + ("; its context was never full" if empty else "")
    if not ok:
        calls = " | ".join(
            (r.stderr or r.stdout).decode("utf-8", "replace").strip()[-SHOWN_CHARACTERS:] for r in ends
        )
        seen += f"; {first.error or 'no error'}{'; refused: ' + refusal if refusal else ''}; it said: {calls}"
    return Finding(scenario.name, ok, seen)


class _Watched(LocalHost):
    """Keeps the episodes that have ended."""

    def __init__(self, episodes: Any) -> None:
        super().__init__(episodes, "")
        self.seen: list[Episode] = []

    async def finish(self, episode_id: str, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(self.episodes.by_id(episode_id))
        return await super().finish(episode_id, *args, **kwargs)


def _config(settings: dict[str, Any], limit: int, timeout_s: float) -> Config:
    return parse_config(
        {
            "model": {"path": "scripted"},
            "env": {"name": AGENT, "config": settings},
            "engine": {"max_model_len": limit},
            "rollout": {"max_tokens_per_turn": TURN, "episode_timeout_s": timeout_s},
        }
    )


def _tokenizer() -> Any:
    """Return a tokenizer of bytes with a template that shows tools, system messages anywhere, and results."""
    from asyncrl.train.models.tiny_model import build_tokenizer

    tokenizer = build_tokenizer(["a - b", "def add(a, b): return a - b"], 600, CONTEXT)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _write_task(folder: Path) -> None:
    for name, text in TASK.items():
        path = folder / "tasks" / "adder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "tasks" / "adder" / "environment" / PICTURE).write_bytes(_png())


def _png() -> bytes:
    """Return a picture of 16 red pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * 4 for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
