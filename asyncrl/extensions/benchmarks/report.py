"""The report of an evaluation for people, as Markdown and as one HTML file that loads nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncrl.extensions.benchmarks.contamination import SHORTEST_ANSWER, N
from asyncrl.extensions.benchmarks.tables import Cell, Table, difference_cells, html_page, markdown_page
from asyncrl.extensions.benchmarks.token_curve import token_figure

SHOWN_REGRESSIONS = 15
SHOWN_OVERLAPPING = 10
MAX_MESSAGE_CHARS = 4000
"""The most characters of one message in the report; the samples hold all of it."""


def report_tables(result: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a result, those without rows left out."""
    checkpoints = result["checkpoints"]
    found = [
        Table(
            "Checkpoints",
            "Score: share of successes, or the mean reward of parts that do not judge; a mean over tasks with its 95 % "
            "interval, clustered by task. Samples that the environment or the infrastructure failed do not count.",
            ("checkpoint", "score", "reward", "counted", "failed", "truncated", "turns", "tokens"),
            [
                [
                    name,
                    Cell(one["score"]),
                    Cell(one["reward"]).text(),
                    f"{one['counted']} of {one['samples']}",
                    ", ".join(f"{kind} {number}" for kind, number in one["failed"].items()) or "0",
                    str(one["truncated"]),
                    f"{one.get('turns', 0):.1f}",
                    f"{one.get('tokens', 0):.0f}",
                ]
                for name, one in checkpoints.items()
            ],
        ),
        _repeats(checkpoints),
        _votes(checkpoints),
        _by_tokens(checkpoints),
        _comparisons(result["comparisons"]),
    ]
    for key, title in (("parts", "By part"), ("tags", "By tag"), ("difficulty", "By difficulty")):
        names = sorted({name for one in checkpoints.values() for name in one[key]})
        rows: list[list[str | Cell]] = [
            [name, checkpoint, Cell(one[key][name]["score"]), str(one[key][name]["counted"])]
            for name in names
            for checkpoint, one in checkpoints.items()
            if name in one[key]
        ]
        found.append(Table(title, "", (key.removesuffix("s"), "checkpoint", "score", "samples"), rows))
    found += _regressions(result["comparisons"])
    found += _contamination(result.get("contamination"))
    found.append(
        Table(
            "Failures",
            "Failures of the agent count as samples that scored nothing; all others enter no rate.",
            ("checkpoint", "class", "part", "error", "samples"),
            [
                [name, one["failure"], one["part"], one["error"], str(one["samples"])]
                for name, checkpoint in checkpoints.items()
                for one in checkpoint["failures"]
            ],
        )
    )
    return [table for table in found if table.rows]


def markdown_report(result: Mapping[str, Any]) -> str:
    """Return `report.md`."""
    return markdown_page(_title(result), _summary(result), report_tables(result))


def html_report(result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `report.html`. rows: the samples, of which the worst are shown whole."""
    by_id = {row["id"]: row for row in rows}
    curves = {name: one.get("by_tokens", ()) for name, one in result["checkpoints"].items()}
    worst = [figure] if (figure := token_figure(curves)) else []
    for name, one in result["checkpoints"].items():
        shown = [_trajectory(by_id[chosen]) for chosen in one["worst"]]
        worst += [f"<h2>Worst trajectories of {html.escape(name)}</h2>", *shown] if shown else []
    return html_page(_title(result), _summary(result), report_tables(result), worst)


def _contamination(found: Mapping[str, Any] | None) -> Iterator[Table]:
    if found is None:
        return
    looked = [
        (part, source, one) for part, sources in found["parts"].items() for source, one in sources.items()
    ]
    yield Table(
        "Leakage",
        f"Overlapping: tasks that share {N} words in a row with the training data, or all of theirs. Repeated: tasks "
        f"with the text of an earlier one. Answer shown: the right answer, of {SHORTEST_ANSWER} characters or more, "
        "stands in the question. " + " ".join(found["notes"]),
        ("part", "training data", "rows", "tasks", "overlapping", "repeated", "answer shown"),
        [
            [
                part,
                source or "not known",
                str(one["rows"]) if source else "",
                str(one["tasks"]),
                str(len(one["overlapping"])) if source else "",
                str(len(one["repeated"])),
                str(len(one["answered"])),
            ]
            for part, source, one in looked
        ],
    )
    yield Table(
        "Scores without overlapping tasks",
        "",
        ("checkpoint", "score"),
        [[name, Cell(interval)] for name, interval in found["scores_without"].items()],
    )
    yield Table(
        "Overlapping tasks",
        f"Those that share most, at most {SHOWN_OVERLAPPING} of each part and training data. Share: of the task's "
        "word sequences, how many the training data has.",
        ("part", "task", "row", "share"),
        [
            [part, listed["task"], f"{source}: {listed['row']}", f"{listed['share']:.2f}"]
            for part, source, one in looked
            for listed in one["overlapping"][:SHOWN_OVERLAPPING]
        ],
    )


def _title(result: Mapping[str, Any]) -> str:
    return f"Suite {result['suite']} version {result['version']}"


def _summary(result: Mapping[str, Any]) -> str:
    state = "" if result["complete"] else " The evaluation is not complete."
    temperature = result["temperature"]
    at = "" if temperature is None else f" at temperature {temperature:g}"
    return (
        f"{result['description']} {result['tasks']} tasks, {result['samples']} samples each{at}; asyncrl "
        f"{result['asyncrl']}.{state}"
    ).strip()


def _repeats(checkpoints: Mapping[str, Any]) -> Table:
    rows: list[list[str | Cell]] = [
        [name, k, Cell(interval), Cell(one["pass_hat"][k])]
        for name, one in checkpoints.items()
        for k, interval in one["pass_at"].items()
    ]
    note = (
        "pass@k: at least one of k samples succeeds; pass^k: all of them. Unbiased, over tasks with k samples that "
        "count."
    )
    return Table("Success over repeated samples", note, ("checkpoint", "k", "pass@k", "pass^k"), rows)


def _votes(checkpoints: Mapping[str, Any]) -> Table:
    rows: list[list[str | Cell]] = [
        [name, rule, k, Cell(interval), f"{int(k) * one['tokens']:.0f}"]
        for name, one in checkpoints.items()
        for rule, by_k in one.get("votes", {}).items()
        for k, interval in by_k.items()
    ]
    note = (
        "Success of the answer that is chosen among k samples without knowing the right one: the most frequent, the "
        "shortest, the most frequent by votes per logarithm of its length, or by the scores of a judge. "
        "Over tasks with k samples that count and, but for the best by a judge, an answer; unbiased. Tokens are those "
        "of k samples on average."
    )
    return Table("Votes", note, ("checkpoint", "chosen by", "k", "success", "tokens"), rows)


def _by_tokens(checkpoints: Mapping[str, Any]) -> Table:
    rows: list[list[str | Cell]] = [
        [name, str(point["limit"]), Cell(point["success"]), f"{point['tokens']:.0f}"]
        for name, one in checkpoints.items()
        for point in one.get("by_tokens", ())
    ]
    note = (
        "Share of samples that are right and took no more sampled tokens than the limit, and the tokens that a sample "
        "takes on average where it ends there. A policy that is told of a limit may answer otherwise."
    )
    return Table("Success against tokens", note, ("checkpoint", "limit", "success", "tokens"), rows)


def _comparisons(comparisons: Sequence[Mapping[str, Any]]) -> Table:
    note = (
        "Difference of scores on shared tasks with a BCa bootstrap interval; p by the paired permutation test, "
        "adjusted by Holm's method over all checkpoints, and over all parts. Detectable: what so many tasks would show "
        "in four of five evaluations."
    )
    rows: list[list[str | Cell]] = [
        [
            one["second"],
            one["first"],
            one["part"] or "all",
            *difference_cells(one),
            f"{one['detectable']:.3f}",
        ]
        for one in comparisons
    ]
    header = ("checkpoint", "against", "part", "difference", "p (Holm)", "better / worse", "detectable")
    return Table("Comparison", note, header, rows)


def _regressions(comparisons: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    for one in comparisons:
        if one["part"] is None:
            rows = [
                [lost["task"], f"{lost['first']:.3f}", f"{lost['second']:.3f}"]
                for lost in one["regressions"][:SHOWN_REGRESSIONS]
            ]
            note = f"Tasks that score less than with {one['first']}, those that lost most first."
            yield Table(f"Regressions of {one['second']}", note, ("task", "before", "now"), rows)


def _trajectory(row: Mapping[str, Any]) -> str:
    head = f"{row['task']} sample {row['sample']}: reward {row['reward']:g}, {row['status']}"
    head += f", {row['error']}" if row["error"] else ""
    notes = "".join(
        f'<div class="message {html.escape(message["role"])}"><h3>{html.escape(message["role"])}</h3>'
        f"<pre>{html.escape(_message(message))}</pre></div>"
        for message in row["messages"]
    )
    return (
        f"<details><summary>{html.escape(head)}</summary>{notes or '<p>no messages were kept</p>'}</details>"
    )


def _message(message: Mapping[str, Any]) -> str:
    calls = [f"{call['name']}({call['arguments']})" for call in message.get("tool_calls", ())]
    content = message.get("content") or ""
    text = "\n".join([content if isinstance(content, str) else json.dumps(content), *calls]).strip()
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]} ..."
