"""`asyncrl study FILE`"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import ConfigError
from asyncrl.signals import end_like_interrupted

if TYPE_CHECKING:
    from asyncrl.extensions.study.study_file import Study


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "study",
        help="compare methods over settings and seeds",
        description="Make the runs that a study's file names and that have no record yet, on engines that they "
        "share, and write FILE.md with a table and FILE.png with the curves. FILE.jsonl has a record of each run: "
        "called again after an interruption, the study goes on, and a run that failed is made again.",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write there instead of beside the file")
    parser.add_argument(
        "--only", default="", metavar="NAME,...", help="make only the runs of these methods now"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="instead of the number in the file")
    parser.add_argument("--report", action="store_true", help="only write table and figure of what there is")
    parser.set_defaults(run=run, loads_models=True)


def run(args: argparse.Namespace) -> int:
    from asyncrl.extensions.study.records import StudyRecords
    from asyncrl.extensions.study.report import write_report
    from asyncrl.extensions.study.runner import check_study, make_runs
    from asyncrl.extensions.study.study_file import read_study

    end_like_interrupted()
    study = read_study(args.file)
    if args.seeds is not None:
        if args.seeds < 1:
            raise ConfigError(f"--seeds: must be at least 1, got {args.seeds}")
        study = study.model_copy(update={"seeds": args.seeds})
    only = named_methods(args.only, study)
    check_study(study)
    folder = args.out or args.file.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    records = StudyRecords(folder / f"{args.file.stem}.jsonl")
    page, figure = folder / f"{args.file.stem}.md", folder / f"{args.file.stem}.png"
    try:
        if not args.report:
            make_runs(study, records, only or list(study.methods), _say)
    except KeyboardInterrupt:
        _say(f"interrupted; the same command goes on from {records.path}")
        raise
    finally:
        text = write_report(study, records, page, figure)
    print(text)
    _say(f"written: {page}, {figure}, {records.path}")
    return 0


def named_methods(text: str, study: Study) -> list[str]:
    """Return the methods that `--only` names, with commas between them. Raises `ConfigError` for one that is none."""
    if text in study.methods:
        # Its name may contain a comma.
        return [text]
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in study.methods]:
        raise ConfigError(f"--only: no method {unknown[0]!r}; allowed: {'; '.join(study.methods)}")
    return names


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
