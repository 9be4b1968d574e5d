"""Real engines, each of an own process that serves vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from asyncrl.config import parse_config
from asyncrl.launch.processes.process_group import ManagedProcess, ProcessGroup
from tests.waiting import START_S, wait_until

END_S = 60.0
ENGINE = {"max_model_len": 256, "max_num_seqs": 64}


@contextmanager
def serving(
    folder: Path,
    model: str,
    weights: Path | None = None,
    env: dict[str, str] | None = None,
    **sections: Any,
) -> Iterator[ManagedProcess]:
    """Serve `model` as the engine of a run in `folder`, which takes weights from the folder `weights`.

    env: variables of its process. sections: of the run's recipe.
    """
    with starting(folder, model, weights, env, **sections) as (process_group, child):
        process_group.wait_ready(child, START_S)
        yield child


@contextmanager
def starting(
    folder: Path,
    model: str,
    weights: Path | None = None,
    env: dict[str, str] | None = None,
    **sections: Any,
) -> Iterator[tuple[ProcessGroup, ManagedProcess]]:
    """As `serving`, without waiting for the engine: several start in the time of one."""
    recipe = {
        "model": {"path": model},
        "env": {"name": "gridworld"},
        "run": {"threads": 1},
        "engine": ENGINE,
        **sections,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(parse_config(recipe).model_dump_json())
    process_group = ProcessGroup(folder)
    argv = ["serve", "engine", "--folder", str(folder), "--model", model]
    try:
        child = process_group.start(
            "engine",
            [*argv, *(["--weights-dir", str(weights)] if weights else [])],
            env,
        )
        yield process_group, child
    finally:
        process_group.stop()


def kill_and_see_all_end(engine: ManagedProcess, victim: str) -> None:
    """Kill the process of an engine whose command holds `victim`, and see all the others end."""
    top = psutil.Process(engine.popen.pid)
    members = [top, *top.children(recursive=True)]
    named = [p for p in members if victim in " ".join(p.cmdline())]
    assert len(members) >= 3, [p.cmdline() for p in members]
    # One that was spawned would have imported all of vLLM anew, for half of the time in which an engine starts.
    assert not [p for p in members if "spawn_main" in " ".join(p.cmdline())]
    named[0].kill()

    def ended() -> bool:
        engine.popen.poll()
        return not any(_alive(p) for p in members)

    wait_until(ended, limit_s=END_S)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
