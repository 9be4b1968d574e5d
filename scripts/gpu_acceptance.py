"""Everything that a machine's first GPU should show, part by part; on a machine without one the same checks on its CPU.

    python scripts/gpu_acceptance.py [--json OUT] [--only NAME ...] [--again] [--page docs/performance.md]
    python scripts/gpu_acceptance.py --short [--device cpu] [--within-s 540] [--json OUT]
    python scripts/gpu_acceptance.py --only smollm2_staleness --data svamp.jsonl [--curve-s 60] [--keep FOLDER]

Each part is a process of at most 8 minutes, and a part that fails does not stop the others. Results are written after
each part. A part that has passed on this machine is not run again, unless --again asks for it, so a run that was
interrupted goes on where it was. The exit code is 0 when no part has failed.

`--short` is for a GPU that is there for ten minutes: nine phases of 590 s in all (scripts/acceptance/phases.py), each
with a limit of its own; one whose time is up keeps the figures it has, and what one omits is in its record with the
reason. `--within-s` ends all of it in time: what does not fit is cut short or not begun. What a machine without a
network needs, scripts/acceptance/carry.py packs. `--device cpu` runs the same phases with small models, each with the
limit of a part, since its times say nothing.

`smollm2_staleness` needs a file of rows (`--data`), and a model that is in the cache or in an installed package.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acceptance.context import PART_S, STOP_S, Context, NotRun, run_part
from acceptance.learning_curve import smollm2_staleness
from acceptance.parts import PARTS
from acceptance.phases import PHASES
from bench.report import FAILED, NOT_RUN, PASSED, Omitted, Record, as_table, describe_machine

from asyncrl.jsonfile import write_json

UNFINISHED = "not finished"
LEAST_S = 5.0
"""Seconds in which a part finds nothing: it would only be started and ended."""
WORK = Path(tempfile.gettempdir()) / f"asyncrl-acceptance-{os.getuid()}"
PARTS[smollm2_staleness.__name__] = smollm2_staleness
BEGIN, END = "<!-- acceptance: begin -->", "<!-- acceptance: end -->"


def main(argv: list[str] | None = None) -> int:
    """Run the parts; return the exit code."""
    args = _arguments(argv)
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Threads that wait for each other on a machine that others use take its time.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.part:
        return _one(args)
    table = PHASES if args.short else PARTS
    unknown = [name for name in args.only if name not in table]
    if unknown:
        print(f"--only: there is no part {unknown[0]!r}; allowed: {', '.join(table)}", file=sys.stderr)
        return 2
    machine = describe_machine()
    records = {record.name: record for record in _read(args.json)}
    args.work.mkdir(parents=True, exist_ok=True, mode=0o700)
    end = time.monotonic() + args.within_s
    for name in args.only or table:
        found = records.get(name)
        if found and found.status == PASSED and found.machine == machine and not args.again:
            print(f"{name}: passed on {found.date}", flush=True)
            continue
        print(f"{name}: {_about(name)}", flush=True)
        limit_s = min(_limit_s(name, args.device), end - time.monotonic() - STOP_S)
        records[name] = _run(name, args, machine, limit_s)
        print(as_line(records[name]), flush=True)
        _write([records[name] for name in table if name in records], args.json)
    every = [records[name] for name in table if name in records]
    if args.page:
        _fill(args.page, every)
    return 1 if any(record.status == FAILED for record in every) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="results; those of parts that have passed are kept")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="parts to run")
    parser.add_argument("--again", action="store_true", help="run parts that have passed, too")
    parser.add_argument("--page", type=Path, help="a page whose table of results is written anew")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for models and runs")
    parser.add_argument(
        "--short", action="store_true", help="the nine phases of ten minutes instead of the parts"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu"),
        default="auto",
        help="cpu: as if there were no GPU, with small models",
    )
    parser.add_argument(
        "--within-s", type=float, default=math.inf, metavar="S", help="seconds that all of it may take"
    )
    parser.add_argument("--data", type=_file, metavar="FILE", help="SVAMP's rows, for smollm2_staleness")
    parser.add_argument(
        "--model", default="smollm2-135m", help="name or folder of the model of smollm2_staleness"
    )
    parser.add_argument(
        "--curve-s", type=float, default=0.0, metavar="S", help="seconds that it trains at each limit"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where metrics and settings of its runs go"
    )
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no such file")
    return path.absolute()


def _about(name: str) -> str:
    return (_function(name).__doc__ or "").strip()


def _function(name: str) -> Callable[[Context], Any]:
    return PHASES[name][1] if name in PHASES else PARTS[name]


def _limit_s(name: str, device: str) -> float:
    return PHASES[name][0] if name in PHASES and device != "cpu" else PART_S


def _run(name: str, args: argparse.Namespace, machine: str, limit_s: float) -> Record:
    """Run a part as a process of its own."""
    result = args.work / f"{name}.json"
    result.unlink(missing_ok=True)
    start = time.monotonic()
    if limit_s < LEAST_S:
        return Record(name, NOT_RUN, "the time of --within-s was up", machine=machine, date=_today())
    command = [sys.executable, __file__, "--part", name, "--work", str(args.work), "--result", str(result)]
    code, output = run_part([*command, *_for_curves(args)], limit_s)
    record = _read_one(result) if result.exists() else Record(name, FAILED, UNFINISHED)
    if record.reason == UNFINISHED:
        # The figures that it has found stay.
        record.reason = f"exit code {code}: {output}"
        if code is None:
            record.reason = f"not finished within {limit_s:.0f} s: {output}"
    record.wall_s = round(time.monotonic() - start, 1)
    record.machine, record.date = machine, _today()
    return record


def _for_curves(args: argparse.Namespace) -> list[str]:
    """Return the options that a part's process is given, too."""
    given = {"--data": args.data, "--model": args.model, "--curve-s": args.curve_s, "--keep": args.keep}
    return [word for key, value in given.items() if value for word in (key, str(value))]


def _today() -> str:
    return datetime.date.today().isoformat()


def _one(args: argparse.Namespace) -> int:
    """Run one part in this process and write its record."""
    name, result = args.part, args.result
    context = Context(args.work, args.data, args.model, args.curve_s, args.keep)
    in_place = "" if context.gpus else "on the CPU"
    record = Record(name, FAILED, UNFINISHED)
    try:
        for found in _function(name)(context):
            if isinstance(found, Omitted):
                record.omitted.append(found)
            else:
                record.figures.append(found)
            result.write_text(json.dumps(record.to_json()))
        failed = [f"{one.name}: {one.reason}" for one in record.omitted if one.failed]
        record.status, record.reason = (FAILED, "; ".join(failed)) if failed else (PASSED, in_place)
    except NotRun as reason:
        record.status, record.reason = NOT_RUN, str(reason)
    except Exception as error:
        record.reason = f"{type(error).__name__}: {error}"
    result.write_text(json.dumps(record.to_json()))
    return 0


def as_line(record: Record) -> str:
    """Return a record as a line for the console."""
    figures = ", ".join(f"{one.name} {one.value:,.4g} {one.unit}".rstrip() for one in record.figures)
    text = f": {record.reason}" if record.reason else ""
    omitted = "".join(f"\n    omitted: {one.name}: {one.reason}" for one in record.omitted)
    return f"  {record.status}{text} ({record.wall_s:.0f} s){'; ' + figures if figures else ''}{omitted}"


def _read(path: Path | None) -> list[Record]:
    if path is None or not path.exists():
        return []
    return [Record.from_json(one) for one in json.loads(path.read_text())["parts"]]


def _read_one(path: Path) -> Record:
    return Record.from_json(json.loads(path.read_text()))


def _write(records: list[Record], path: Path | None) -> None:
    if path is None:
        return
    write_json(path, {"parts": [record.to_json() for record in records]}, indent=1)


def _fill(page: Path, records: list[Record]) -> None:
    """Write the table between the page's two marks."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    header = f"{records[-1].machine}, {max(record.date for record in records)}:"
    page.write_text(f"{before}{BEGIN}\n{header}\n\n{as_table(records)}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
