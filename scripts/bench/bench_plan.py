"""Compares what `asyncrl plan run --calibrate` predicts with runs that were made.

    python scripts/bench/bench_plan.py [--steps 16] [--repeats 1] [--json OUT] [--runs FOLDER] [key=value ...]

Trains gridworld_grpo once as it is calibrated on (synchronous) and then in six other ways: schedules, staleness limits,
sizes of steps and groups. Each is predicted from the first run alone. The report has groups an hour of each, measured
and predicted, and their ratio. With --repeats all runs are made several times, one round after the other with a seed of
its own each, every second one in the opposite order, so that a machine that becomes slower favours nobody. Each round
is predicted from its own run of that kind: what is reported is the median of what was measured, the median of what was
predicted, and the ratio of the two. With --runs the folders are kept, and those that are there are not made again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from report import describe_machine, write_report

from asyncrl.config import load_config
from asyncrl.extensions.simulation.calibrate import Calibration, calibrate, measured_groups_per_hour
from asyncrl.extensions.simulation.cluster import simulate
from asyncrl.launch.models.base_model import cached_base_model
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics import read_metrics

RECIPE = "gridworld_grpo"
CALIBRATED = "synchronous"
RUNS = {
    CALIBRATED: ["train.schedule=synchronous"],
    "one step off": ["train.schedule=one_step_off"],
    "asynchronous, limit 2": ["train.schedule=asynchronous", "buffer.max_staleness=2"],
    "partial, limit 1": ["train.schedule=partial", "buffer.max_staleness=1"],
    "partial, limit 4": ["train.schedule=partial", "buffer.max_staleness=4"],
    "partial, 32 groups of 8": ["buffer.groups_per_step=32", "rollout.group_size=8"],
    "synchronous, 32 groups": ["train.schedule=synchronous", "buffer.groups_per_step=32"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.runs or Path(scratch)
        for repeat in range(args.repeats):
            for name in list(RUNS)[:: -1 if repeat % 2 else 1]:
                run = folder / _file(name, repeat)
                if not (run / "summary.json").exists():
                    train([*_common(args), f"run.seed={repeat}", *RUNS[name]], run)
        write_report(compare(folder, args), args.json)


def _common(args: argparse.Namespace) -> list[str]:
    model = cached_base_model(load_config(RECIPE))
    return [f"model.path={model}", f"train.num_steps={args.steps}", "eval.tasks=0", *args.overrides]


def train(changes: list[str], folder: Path) -> None:
    """Train once; the run is in `folder` afterwards."""
    with RunFolder(folder) as run_folder:
        TrainRun(load_config(RECIPE, changes), run_folder).run()


def compare(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return measured and predicted rates of all runs."""
    calibrated = [calibrate(folder / _file(CALIBRATED, repeat)) for repeat in range(args.repeats)]
    rounds = [compare_round(folder, args.steps, *one) for one in enumerate(calibrated)]
    rows = {}
    for name in RUNS:
        measured, predicted = zip(*(found[name] for found in rounds), strict=True)
        rows[name] = {
            "measured_groups_per_hour": statistics.median(measured),
            "predicted_groups_per_hour": statistics.median(predicted),
            "predicted_over_measured": statistics.median(predicted) / statistics.median(measured),
            "measured": measured,
            "predicted": predicted,
        }
    others = [abs(row["predicted_over_measured"] - 1) for name, row in rows.items() if name != CALIBRATED]
    return {
        "machine": describe_machine(),
        "calibrated_on": CALIBRATED,
        "factors_on_engine_time": [found.factor for found in calibrated],
        "costs": [repr(found.costs) for found in calibrated],
        "runs": rows,
        "largest_error": max(others),
    }


def compare_round(
    folder: Path, steps: int, repeat: int, found: Calibration
) -> dict[str, tuple[float, float]]:
    """Return each run's groups an hour in one round: measured, and predicted by that round's calibration."""
    rates = {}
    for name in RUNS:
        run = folder / _file(name, repeat)
        config = load_config(run / "config.json")
        outcome = simulate(config, found.costs, found.workload, config.engine.count, steps)
        rates[name] = measured_groups_per_hour(read_metrics(run)), outcome.groups_per_hour
    return rates


def _file(name: str, repeat: int) -> str:
    return f"{name.replace(',', '').replace(' ', '-')}-{repeat}"


if __name__ == "__main__":
    main()
