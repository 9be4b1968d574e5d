"""The web pages that show runs, and the data behind them.

    asyncrl monitor [RUN|FOLDER]

The page itself holds nothing and is open. What it shows it asks for with the token in the link that `asyncrl monitor`
prints. The token stands after a #, which no browser sends to a server.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, Response

from asyncrl.credentials import Access
from asyncrl.errors import InputError
from asyncrl.extensions.monitor.describe import describe_run
from asyncrl.extensions.monitor.episodes import FILTERS, MAX_ROWS, EpisodeTable
from asyncrl.extensions.monitor.export import exported_page
from asyncrl.extensions.monitor.pages import FILES, PAGE, WEB
from asyncrl.extensions.monitor.prometheus import CONTENT_TYPE, exposition
from asyncrl.extensions.monitor.steps import StepColumns
from asyncrl.extensions.monitor.timeline import down_spans, idle_causes, trainer_spans
from asyncrl.extensions.monitor.tokens import TokenTexts
from asyncrl.run.differences import differing_settings
from asyncrl.run.logs import read_log
from asyncrl.run.observe import RunObserver
from asyncrl.run.runs import RunLines, find_runs, read_config, state_of
from asyncrl.services.http.app import create_app

CONTENT_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
StepNumber = Annotated[int, Query(ge=-(2**53), lt=2**53)]
RowNumber = Annotated[int, Query(ge=0, lt=2**53)]
"""Numbers in a query that the tables of trajectories can compare with."""
SPAN_STEPS = 400
"""Steps of the timeline that a page shows at most."""


class RunReader:
    """The readers of one run. They keep what they have read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.observer = RunObserver(folder)
        self.steps = StepColumns(folder, self.observer.steps)
        self.episodes = EpisodeTable(folder)
        self.tokens = TokenTexts(folder)


class Monitor:
    """All runs in one place. May be used by several threads."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.lines = RunLines()
        self._readers: dict[str, RunReader] = {}
        self._lock = threading.Lock()

    def folders(self) -> dict[str, Path]:
        return find_runs(self.place)

    def reader(self, name: str) -> RunReader:
        """Return the reader of a run. Raises `InputError` for a name that no run has."""
        folder = self.folders().get(name)
        if folder is None:
            raise InputError(f"no run {name[:64]!r} in {self.place}")
        with self._lock:
            if name not in self._readers:
                self._readers[name] = RunReader(folder)
            return self._readers[name]


def monitor_app(place: Path, access: Access) -> FastAPI:
    """Return the app that shows the runs in `place`. Raises `ConfigError` where there are none."""
    find_runs(place)
    monitor = Monitor(place)
    app = create_app("monitor", access, open_paths={"/", "/healthz", *(f"/web/{name}" for name in FILES)})
    _add_page(app)
    _add_runs(app, monitor)
    _add_episodes(app, monitor)
    return app


def _add_page(app: FastAPI) -> None:
    @app.get("/")
    async def page() -> FileResponse:
        return _static(PAGE)

    @app.get("/web/{name}")
    async def file(name: str) -> FileResponse:
        if name not in FILES:
            raise InputError(f"no file {name[:64]!r}")
        return _static(name)


def _static(name: str) -> FileResponse:
    headers = {
        "Content-Security-Policy": CONTENT_POLICY,
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
    }
    return FileResponse(WEB / name, headers=headers)


def _add_runs(app: FastAPI, monitor: Monitor) -> None:
    @app.get("/metrics")
    def metrics() -> Response:
        """The newest state of the runs, for Prometheus."""
        lines = ((monitor.lines.line(name, folder), folder) for name, folder in monitor.folders().items())
        return Response(exposition(lines), media_type=CONTENT_TYPE)

    # Plain functions: FastAPI runs them in threads, and they read files.
    @app.get("/api/runs")
    def runs() -> dict[str, Any]:
        """All runs, the one that wrote last first."""
        lines = [monitor.lines.line(name, folder) for name, folder in monitor.folders().items()]
        return {"place": str(monitor.place), "runs": sorted(lines, key=lambda line: -line.changed)}

    @app.get("/api/run")
    def run(name: str) -> dict[str, Any]:
        """One run, but for its steps and trajectories."""
        reader = monitor.reader(name)
        return {
            **describe_run(name, reader.folder),
            "metrics": reader.steps.names(),
            "findings": reader.observer.findings(),
        }

    @app.get("/api/steps")
    def steps(name: str, keys: str = "", after: StepNumber = -1) -> dict[str, list[Any]]:
        """Columns of the run's metrics; keys: separated by commas."""
        return monitor.reader(name).steps.columns([key for key in keys.split(",") if key], after)

    @app.get("/api/timeline")
    def timeline(name: str) -> dict[str, Any]:
        """When the trainer worked and waited, processes were down, and engines and environments idled, and why."""
        reader = monitor.reader(name)
        names = ["time", *(f"time/{part}_s" for part in ("wait", "train", "publish"))]
        columns = reader.steps.columns(names)
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        samples = reader.observer.activity.refresh()[-3600:]
        return {
            "state": state_of(reader.folder, read_config(reader.folder)),
            "trainer": trainer_spans(rows[-SPAN_STEPS:]),
            "down": down_spans(reader.observer.restarts.refresh()),
            "activity": [
                {**sample, "idle": causes}
                for sample, causes in zip(samples, idle_causes(samples), strict=True)
            ],
        }

    @app.get("/api/log")
    def log(name: str, process: str) -> dict[str, str]:
        """The end of a process's log."""
        return {"text": read_log(monitor.reader(name).folder, process)}

    @app.get("/api/compare")
    def compare(names: str) -> list[dict[str, Any]]:
        """The settings in which runs differ; names: separated by commas."""
        chosen = [name for name in names.split(",") if name]
        return differing_settings({name: read_config(monitor.reader(name).folder) for name in chosen})

    @app.get("/api/export")
    def export(names: str) -> Response:
        """One HTML file that shows these runs without a server."""
        chosen = {name: monitor.reader(name) for name in names.split(",") if name}
        page = exported_page({name: (r.folder, r.steps, r.episodes, r.tokens) for name, r in chosen.items()})
        return Response(page, media_type="text/html")


def _add_episodes(app: FastAPI, monitor: Monitor) -> None:
    @app.get("/api/episodes")
    def episodes(
        request: Request,
        name: str,
        sort: str = "step",
        descending: bool = True,
        offset: RowNumber = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 50,
    ) -> dict[str, Any]:
        """A page of trajectories; every other parameter is a filter."""
        own = {"name", "sort", "descending", "offset", "limit"}
        filters = {key: value for key, value in request.query_params.items() if key not in own and value}
        table = monitor.reader(name).episodes
        return table.page(filters, sort, descending, offset, limit) | {
            "choices": table.choices(),
            "filters": sorted(FILTERS),
        }

    @app.get("/api/episode")
    def episode(name: str, step: StepNumber, group: str, index: RowNumber) -> dict[str, Any]:
        """One trajectory with its messages, tokens and siblings."""
        reader = monitor.reader(name)
        found = reader.episodes.episode(step, group, index)
        if found is None:
            raise InputError(f"no episode {index} of group {group[:64]!r} in step {step}")
        return reader.tokens.with_texts(found)

    @app.get("/api/tree")
    def tree(name: str, step: StepNumber, group: str) -> list[dict[str, Any]]:
        """The tree of a group's episodes."""
        return monitor.reader(name).episodes.tree(step, group)
