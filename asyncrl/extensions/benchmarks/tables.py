"""Tables of an evaluation for people, as Markdown and as one HTML page that loads nothing."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STYLES = Path(__file__).with_name("report.css")

Interval = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with a number that has an interval."""

    interval: Interval | None
    signed: bool = False

    def text(self) -> str:
        if self.interval is None:
            return "none counted"
        sign, low, high = "+" if self.signed else "", self.interval["ci_low"], self.interval["ci_high"]
        bounds = "" if low is None else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
        return f"{self.interval['mean']:{sign}.3f}{bounds}"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]


def difference(one: Mapping[str, Any]) -> Cell:
    """Return the difference that a comparison found."""
    interval = {"mean": one["difference"], "ci_low": one["ci_low"], "ci_high": one["ci_high"]}
    return Cell(interval, signed=True)


def difference_cells(one: Mapping[str, Any]) -> list[str | Cell]:
    """Return the difference of a comparison, its p-value, and the tasks that are better and worse."""
    return [
        difference(one),
        f"{one['p_holm']:.4f}",
        f"{one['better']} / {one['worse']} of {one['tasks']}",
    ]


def markdown_page(title: str, summary: str, tables: Sequence[Table]) -> str:
    """Return a page of tables as Markdown."""
    lines = [f"# {title}", "", summary, ""]
    for table in tables:
        lines += [f"## {table.title}", "", *([table.note, ""] if table.note else [])]
        lines += [_line(table.header), _line(["---"] * len(table.header))]
        lines += [*(_line([_text(cell) for cell in row]) for row in table.rows), ""]
    return "\n".join(lines)


def html_page(title: str, summary: str, tables: Sequence[Table], further: Sequence[str] = ()) -> str:
    """Return a page of tables as HTML. further: what follows them, as HTML."""
    title = html.escape(title)
    body = [f"<h1>{title}</h1>", f"<p>{html.escape(summary)}</p>"]
    for number, table in enumerate(tables):
        body += [f'<h2 id="t{number}">{html.escape(table.title)}</h2>']
        body += [f"<p>{html.escape(table.note)}</p>"] if table.note else []
        # A table that is wider than a phone scrolls by itself, also by the keyboard.
        body += [f'<div class="table" role="region" aria-labelledby="t{number}" tabindex="0"><table>']
        body += ["<thead><tr>", *(f'<th scope="col">{html.escape(one)}</th>' for one in table.header)]
        body += ["</tr></thead><tbody>"]
        body += ["<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in table.rows]
        body += ["</tbody></table></div>"]
    body += further
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLES.read_text(encoding='utf-8')}</style></head>\n"
        f"<body><main>\n{chr(10).join(body)}\n</main></body></html>\n"
    )


def _text(cell: str | Cell) -> str:
    return cell.text() if isinstance(cell, Cell) else cell


def _line(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _cell(cell: str | Cell) -> str:
    text = html.escape(_text(cell))
    if not isinstance(cell, Cell) or cell.interval is None or cell.interval["ci_low"] is None:
        return text
    least, mean, most = cell.interval["ci_low"], cell.interval["mean"], cell.interval["ci_high"]
    start, end = (-1.0, 1.0) if cell.signed else (0.0, 1.0)
    if not start <= least <= most <= end:
        # Rewards have no scale of their own.
        return text
    low, middle, high = (4 + 152 * (value - start) / (end - start) for value in (least, mean, most))
    zero = 4 + 152 * -start / (end - start)
    return (
        f'{text}<svg aria-hidden="true" viewBox="0 0 160 16"><line class="axis" x1="4" y1="8" x2="156" y2="8"/>'
        f'<line class="axis" x1="{zero:.1f}" y1="2" x2="{zero:.1f}" y2="14"/>'
        f'<line x1="{low:.1f}" y1="8" x2="{high:.1f}" y2="8"/><circle cx="{middle:.1f}" cy="8" r="3.5"/></svg>'
    )
