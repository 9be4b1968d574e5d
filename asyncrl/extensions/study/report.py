"""A study's page: what is claimed, what was run, what came out, as Markdown with a figure of the curves."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.extensions.benchmarks.comparison import holm
from asyncrl.extensions.study.calibration import Made, calibration_table, draw_calibration
from asyncrl.extensions.study.paired import PairedDifference, mean_interval, paired_difference, paired_speed
from asyncrl.extensions.study.records import StudyRecords, mean_over_steps, value_of
from asyncrl.extensions.study.runner import compared_runs
from asyncrl.extensions.study.study_file import Study, relative

POINTS = 60
"""The points of a mean curve."""
WORDS = {
    "success": "held-out success after training",
    "metric": "`{metric}`, last fifth of the steps",
    "rollouts": "rollouts until held-out success reaches {target:g}",
    "tokens": "sampled tokens until held-out success reaches {target:g}",
    "seconds": "seconds of training until held-out success reaches {target:g}",
}


def write_report(study: Study, records: StudyRecords, page: Path, figure: Path) -> str:
    """Write page and figure from what has been recorded so far; return the page."""
    made = [
        (run, record) for run in compared_runs(study, records) if (record := records.find(run)) is not None
    ]
    ended = [(run, record) for run, record in made if "error" not in record]
    if ended:
        draw(study, ended, figure)
    predicted = figure.with_name(f"{figure.stem}-calibration.png")
    drawn = draw_calibration(study, ended, predicted)
    text = report(study, made, figure.name if ended else "", predicted.name if drawn else "")
    page.write_text(text, encoding="utf-8")
    return text


def report(study: Study, made: Made, figure: str = "", calibration: str = "") -> str:
    """Return the page as Markdown. figure, calibration: paths of the figures from the page, "" for none."""
    parts = [f"# {study.title}"]
    if study.claim:
        parts.append(f"**Claim.** {study.claim.strip()}")
    parts.append(f"**What was run.** {_what_was_run(study)}")
    parts.append("```text\n" + "\n".join(_settings_lines(study)) + "\n```")
    for condition in study.conditions:
        if condition:
            parts.append(f"## {condition}")
        parts.append(table(study, [one for one in made if one[0].condition == condition]))
    if figure:
        parts.append(f"![Held-out success over tokens and seconds]({figure})")
    if calibration:
        parts.append(
            "How each curriculum predicted the success of the groups that it proposed, pooled over seeds. "
            "`of a constant` is the squared error of who knows their mean success and nothing else; a Brier score "
            "below it is worth something."
        )
        for condition in study.conditions:
            if found := calibration_table(study, made, condition):
                parts.append(f"{condition}:\n\n{found}" if condition else found)
        parts.append(f"![Realised over predicted success]({calibration})")
    expected = len(study.methods) * len(study.conditions) * study.seeds
    ended = sum("error" not in record for _, record in made)
    if ended < expected:
        parts.append(f"{ended} of {expected} runs have ended so far.")
    starts = {record.get("start", "") for _, record in made if "error" not in record}
    if len(starts) > 1:
        parts.append(
            "A base model that is trained anew is not the same on every machine. Runs that started from different "
            "ones are not compared in pairs."
        )
    if study.finding:
        parts.append(f"**Finding.** {study.finding.strip()}")
    return "\n\n".join(parts) + "\n"


def table(study: Study, made: Made) -> str:
    """Return one condition's comparison as a Markdown table."""
    baseline = _values(study, made, study.compared_with)
    rows = []
    for method in study.methods:
        records = {run.seed: record for run, record in made if run.method == method}
        ended = {seed: record for seed, record in records.items() if "error" not in record}
        tuned = next((run.tuned for run, _ in made if run.method == method), {})
        values = _values(study, made, method)
        comparable = _comparable(study, made, method)
        difference = (
            paired_difference({seed: baseline[seed] for seed in comparable & baseline.keys()}, values)
            if method != study.compared_with
            else None
        )
        rows.append((method, tuned, ended, values, difference, len(records) - len(ended)))
    adjusted = iter(holm([row[4].p_value for row in rows if row[4] is not None]))
    head = [
        "method",
        *study.tuning.values,
        "before",
        WORDS[study.measure].format(target=study.target, metric=study.metric),
    ]
    if study.lower_is_better:
        head += ["reached", "success after", f"success less `{study.compared_with}`, paired"]
    head += [
        f"less `{study.compared_with}`, paired",
        "p (Holm)",
        "staleness",
        "ESS",
        "seconds",
        *(["times as fast, paired"] if study.compare_seconds else []),
        "seeds",
        "failed",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, tuned, ended, values, difference, failed in rows:
        comparable = _comparable(study, made, method)
        cells = [f"`{method}`", *(f"{tuned[key]}" if key in tuned else "" for key in study.tuning.values)]
        first = [record["held_out"][0]["success"] for record in ended.values()]
        cells += [_mean(first), _with_interval(list(values.values()), study.lower_is_better)]
        if study.lower_is_better:
            after = _successes_after(made, method)
            more = None
            if method != study.compared_with:
                more = paired_difference(
                    {s: v for s, v in _successes_after(made, study.compared_with).items() if s in comparable},
                    after,
                )
            cells += [
                f"{len(values)} of {len(ended)}",
                _mean(list(after.values())),
                _difference(more, "+.3f"),
            ]
        digits = "+.0f" if study.lower_is_better else "+.3f"
        cells += [_difference(difference, digits), "" if difference is None else f"{next(adjusted):.3f}"]
        cells += [
            _mean([record["staleness_mean"] for record in ended.values()], ".2f"),
            _mean([mean_over_steps(record, "ess") for record in ended.values()], ".2f"),
            _mean(list(_seconds(made, method).values()), ".0f"),
            *([_speed(study, made, method, comparable)] if study.compare_seconds else []),
            str(len(ended)),
            str(failed),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _seconds(made: Made, method: str) -> dict[int, float]:
    """Return the seconds of training of a method's runs, by seed."""
    return {
        run.seed: record["steps"][-1]["seconds"]
        for run, record in made
        if run.method == method and "error" not in record and record["steps"]
    }


def _speed(study: Study, made: Made, method: str, comparable: Set[int]) -> str:
    """Return how many times as fast as the baseline a method was; "" where nothing is compared."""
    baseline = {s: v for s, v in _seconds(made, study.compared_with).items() if s in comparable}
    own = _seconds(made, method)
    if method == study.compared_with or not baseline.keys() & own.keys():
        return ""
    return _interval(*paired_speed(baseline, own), ".2f")


def draw(study: Study, made: Made, path: Path) -> None:
    """Draw held-out success over sampled tokens and over seconds: one row a condition, mean and range over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(study.conditions),
        2,
        figsize=(10, 3.2 * len(study.conditions)),
        squeeze=False,
        layout="constrained",
    )
    for row, condition in zip(axes, study.conditions, strict=True):
        for axis, unit in zip(row, ("tokens", "seconds"), strict=True):
            for method in study.methods:
                curves = [
                    record["held_out"]
                    for run, record in made
                    if (run.method, run.condition) == (method, condition)
                ]
                if curves:
                    x, low, mean, high = mean_curve(curves, unit)
                    (line,) = axis.plot(x, mean, label=method)
                    axis.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
            axis.set_xlabel({"tokens": "sampled tokens", "seconds": "seconds of training"}[unit])
            axis.grid(alpha=0.3)
        row[0].set_ylabel("held-out success" + (f"\n{condition}" if condition else ""))
        row[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def mean_curve(
    curves: Sequence[Sequence[Mapping[str, float]]], unit: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return places [P] along `unit`, and lowest, mean and highest success [P] there, linear between evaluations.

    It ends where the shortest curve does: beyond, the mean would be of other runs.
    """
    end = min(curve[-1][unit] for curve in curves)
    x = np.linspace(0.0, end, POINTS)
    values = np.stack([
        np.interp(x, [one[unit] for one in curve], [one["success"] for one in curve]) for curve in curves
    ])  # fmt: skip
    return x, values.min(0), values.mean(0), values.max(0)


def _values(study: Study, made: Made, method: str) -> dict[int, float]:
    """Return what is compared by seed, of the runs of a method that have it."""
    found = {
        run.seed: value_of(record, study)
        for run, record in made
        if run.method == method and "error" not in record
    }
    return {seed: value for seed, value in found.items() if value is not None}


def _comparable(study: Study, made: Made, method: str) -> set[int]:
    """Return the seeds whose runs of a method and of the one it is compared with started from the same weights."""
    starts: dict[str, dict[int, str]] = {method: {}, study.compared_with: {}}
    for run, record in made:
        if run.method in starts and "error" not in record:
            starts[run.method][run.seed] = record.get("start", "")
    return {seed for seed, start in starts[method].items() if starts[study.compared_with].get(seed) == start}


def _successes_after(made: Made, method: str) -> dict[int, float]:
    """Return held-out success after training by seed."""
    return {
        run.seed: record["held_out"][-1]["success"]
        for run, record in made
        if run.method == method and "error" not in record
    }


def _what_was_run(study: Study) -> str:
    text = f"`{study.recipe}` with the settings below, {study.seeds} seeds"
    if study.tuning.values:
        tried = "; ".join(f"`{key}` of {', '.join(map(str, v))}" for key, v in study.tuning.values.items())
        text += f"; each method with its own best {tried}, chosen on {study.tuning.seeds} other seed(s)"
    return f"{text}. Intervals are at 95 % over seeds, differences are paired by seed with `{study.compared_with}`."


def _settings_lines(study: Study) -> list[str]:
    lines = _section_lines("", study.settings)
    for kind, parts in (("condition", study.conditions), ("method", study.methods)):
        for name, settings in parts.items():
            if name and settings:
                lines += _section_lines(f"  # {kind} {name}", settings)
    return [relative(line, study.folder) for line in lines]


def _section_lines(note: str, settings: Mapping[str, Any]) -> list[str]:
    pairs = [
        (f"{section}.{key}", value)
        for section, values in settings.items()
        for key, value in (values.items() if isinstance(values, Mapping) else ((None, values),))
    ]
    return [f"{key.removesuffix('.None')} = {_toml(value)}{note}" for key, value in pairs]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _mean(values: Sequence[float | None], digits: str = ".3f") -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):{digits}}" if known else ""


def _with_interval(values: list[float], whole: bool) -> str:
    if not values:
        return ""
    digits = ".0f" if whole else ".3f"
    return f"{_interval(*mean_interval(values), digits)}, {min(values):{digits}} to {max(values):{digits}}"


def _difference(found: PairedDifference | None, digits: str) -> str:
    return "" if found is None else _interval(found.mean, found.ci_low, found.ci_high, digits)


def _interval(mean: float, low: float | None, high: float | None, digits: str) -> str:
    bounds = "" if low is None or high is None else f" [{low:{digits}}, {high:{digits}}]"
    return f"{mean:{digits}}{bounds}"
