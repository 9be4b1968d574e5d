"""The office's tools, each a few lines on the world's state."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from asyncrl.envs.office.world import DAYS, HOURS, Mail, World
from asyncrl.envs.tools import ToolError, schema

TOOLS: dict[str, list[dict[str, Any]]] = {
    "files": [
        schema("list_files", "Name all files."),
        schema("read_file", "Show a file.", path="string"),
        schema("write_file", "Create or replace a file.", path="string", text="string"),
        schema("delete_file", "Remove a file.", path="string"),
    ],
    "mail": [
        schema("inbox", "List the mails received: number, sender, subject."),
        schema("read_mail", "Show a mail by its number.", number="integer"),
        schema("send_mail", "Send a mail to a person.", to="string", subject="string", text="string"),
    ],
    "calendar": [
        schema("meetings", "List the meetings of a day (Mon to Fri).", day="string"),
        schema("book", "Book a meeting, hours 9 to 16.", title="string", day="string", hour="integer"),
        schema("move", "Move a meeting.", title="string", day="string", hour="integer"),
        schema("cancel", "Cancel a meeting.", title="string"),
    ],
    "knowledge": [
        schema("search", "Titles of the pages that hold all the words.", words="string"),
        schema("page", "Show a page of the knowledge base.", title="string"),
    ],
    "sheets": [
        schema("read_sheet", "Show all cells of a sheet.", name="string"),
        schema("set_cell", "Write a cell, such as B2.", name="string", cell="string", value="string"),
    ],
}
"""Tool schemas by service."""
TEXT_CHARACTERS = 2_000
CELL = re.compile(r"[A-Z][1-9][0-9]?")


class Services:
    """The handlers of all tools, by name. They raise `ToolError` for what is impossible."""

    def __init__(self, world: World) -> None:
        self.world = world

    def handlers(self) -> dict[str, Callable[..., str]]:
        """Return each tool's method."""
        return {
            tool["function"]["name"]: getattr(self, tool["function"]["name"])
            for tools in TOOLS.values()
            for tool in tools
        }

    def list_files(self) -> str:
        return "\n".join(sorted(self.world.files)) or "(none)"

    def read_file(self, path: str) -> str:
        return _known(self.world.files, path, "file")

    def write_file(self, path: str, text: str) -> str:
        if not re.fullmatch(r"[\w.-]{1,40}", path):
            raise ToolError("a path is a plain file name")
        self.world.files[path] = _short(text)
        return "written"

    def delete_file(self, path: str) -> str:
        _known(self.world.files, path, "file")
        del self.world.files[path]
        return "deleted"

    def inbox(self) -> str:
        return "\n".join(f"{i} {mail.person}: {mail.subject}" for i, mail in enumerate(self.world.inbox, 1))

    def read_mail(self, number: int) -> str:
        if not 1 <= number <= len(self.world.inbox):
            raise ToolError(f"no mail {number}")
        return self.world.inbox[number - 1].text

    def send_mail(self, to: str, subject: str, text: str) -> str:
        self.world.sent.append(Mail(_short(to), _short(subject), _short(text)))
        return "sent"

    def meetings(self, day: str) -> str:
        _slot(day, HOURS[0])
        found = [(hour, title) for title, (on, hour) in self.world.meetings.items() if on == day]
        return "\n".join(f"{hour} {title}" for hour, title in sorted(found)) or "(none)"

    def book(self, title: str, day: str, hour: int) -> str:
        if title in self.world.meetings:
            raise ToolError(f"there is a meeting {title!r} already")
        self._free(day, hour)
        self.world.meetings[_short(title)] = (day, hour)
        return "booked"

    def move(self, title: str, day: str, hour: int) -> str:
        _known(self.world.meetings, title, "meeting")
        self._free(day, hour)
        self.world.meetings[title] = (day, hour)
        return "moved"

    def cancel(self, title: str) -> str:
        _known(self.world.meetings, title, "meeting")
        del self.world.meetings[title]
        return "cancelled"

    def search(self, words: str) -> str:
        wanted = words.lower().split()
        pages = [t for t, text in self.world.pages.items() if all(w in f"{t} {text}".lower() for w in wanted)]
        return "\n".join(pages) or "(none)"

    def page(self, title: str) -> str:
        return _known(self.world.pages, title, "page")

    def read_sheet(self, name: str) -> str:
        cells = _known(self.world.sheets, name, "sheet")
        return "\n".join(f"{cell} {value}" for cell, value in sorted(cells.items()))

    def set_cell(self, name: str, cell: str, value: str) -> str:
        _known(self.world.sheets, name, "sheet")
        if not CELL.fullmatch(cell):
            raise ToolError(f"no cell {cell!r:.20}")
        self.world.sheets[name][cell] = _short(value)
        return "set"

    def _free(self, day: str, hour: int) -> None:
        _slot(day, hour)
        if taken := self.world.at(day, hour):
            raise ToolError(f"{day} {hour} is taken by {taken}")


def _known(table: dict[str, Any], key: str, what: str) -> Any:
    if key not in table:
        raise ToolError(f"no {what} {key!r:.60}")
    return table[key]


def _slot(day: str, hour: int) -> None:
    if day not in DAYS:
        raise ToolError(f"no day {day!r:.20}; days are {', '.join(DAYS)}")
    if hour not in HOURS:
        raise ToolError(f"hours are {HOURS[0]} to {HOURS[-1]}")


def _short(text: str) -> str:
    if len(text) > TEXT_CHARACTERS:
        raise ToolError(f"a text has at most {TEXT_CHARACTERS} characters")
    return text
