"""One HTML file that shows runs without a server: the page with its scripts, styles and the data they would ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asyncrl.extensions.monitor.describe import describe_run
from asyncrl.extensions.monitor.episodes import EpisodeTable
from asyncrl.extensions.monitor.pages import PAGE, SCRIPTS, STYLES, WEB
from asyncrl.extensions.monitor.steps import StepColumns
from asyncrl.extensions.monitor.tokens import TokenTexts
from asyncrl.run.differences import differing_settings
from asyncrl.run.observe import RunObserver
from asyncrl.run.runs import read_config, run_line

Readers = tuple[Path, StepColumns, EpisodeTable, TokenTexts]
EPISODES = 40
"""Trajectories of each run in the file: the newest, and as many of the lowest and the highest rewards."""


def exported_page(runs: Mapping[str, Readers]) -> str:
    """Return the file for these runs by name."""
    data = {
        "runs": [asdict(run_line(name, readers[0])) for name, readers in runs.items()],
        "run": {name: _run(name, readers) for name, readers in runs.items()},
        "compare": differing_settings({name: read_config(readers[0]) for name, readers in runs.items()}),
    }
    # "</script" would end the script that holds the data, and "<!--<script" keep it from ending.
    text = json.dumps(data, default=str).replace("<", "\\u003c")
    page = (WEB / PAGE).read_text(encoding="utf-8")
    for name in STYLES:
        link = f'<link rel="stylesheet" href="web/{name}">'
        page = _replaced(page, link, f"<style>{(WEB / name).read_text(encoding='utf-8')}</style>")
    for name in SCRIPTS:
        script = (WEB / name).read_text(encoding="utf-8").replace("</script", "<\\/script")
        before = f"<script>window.ASYNCRL_EXPORT = {text};</script>\n" if name == SCRIPTS[0] else ""
        page = _replaced(page, f'<script src="web/{name}"></script>', f"{before}<script>{script}</script>")
    return page


def _replaced(page: str, old: str, new: str) -> str:
    if old not in page:
        raise ValueError(f"the page has no {old}")
    return page.replace(old, new)


def _run(name: str, readers: Readers) -> dict[str, Any]:
    folder, steps, episodes, tokens = readers
    names, findings = steps.names(), [asdict(finding) for finding in RunObserver(folder).findings()]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for sort, descending in (("step", True), ("reward", False), ("reward", True)):
        for row in episodes.page({}, sort, descending, 0, EPISODES)["rows"]:
            rows[row["step"], row["group"], row["episode_index"]] = row
    whole = {}
    for step, group, index in rows:
        found = episodes.episode(step, group, index)
        if found is not None:
            whole[f"{step}/{group}/{index}"] = tokens.with_texts(found)
    return {
        "description": describe_run(name, folder) | {"metrics": names, "findings": findings},
        "steps": steps.columns(names),
        "episodes": list(rows.values()),
        "choices": episodes.choices(),
        "episode": whole,
        "tree": {f"{step}/{group}": episodes.tree(step, group) for step, group, _ in rows},
    }
