"""The state of a small office: files, mail, a calendar, a knowledge base, spreadsheets."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri")
HOURS = tuple(range(9, 17))
PEOPLE = ("ada", "ben", "cleo", "dan", "eva", "finn")
MEETINGS = ("Review", "Standup", "Budget", "Hiring", "Design", "Retro", "Sales", "Demo")
SHEETS = ("trips", "stock", "hours")
FILES = ("notes.txt", "todo.txt", "plan.txt")
WORDS = ("apple", "river", "stone", "cloud", "amber", "maple", "comet", "linen", "olive", "delta")

Slot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail received (`person` is its sender) or sent (its recipient)."""

    person: str
    subject: str
    text: str


@dataclass(slots=True)
class World:
    """Everything that the tools read and write."""

    files: dict[str, str] = field(default_factory=dict)
    inbox: list[Mail] = field(default_factory=list)
    """Oldest first; a mail's number is its position, from 1."""
    sent: list[Mail] = field(default_factory=list)
    meetings: dict[str, Slot] = field(default_factory=dict)
    """Title -> day and hour. Others may double-book an hour, the tools do not."""
    pages: dict[str, str] = field(default_factory=dict)
    """The knowledge base, by title. Read-only."""
    sheets: dict[str, dict[str, str]] = field(default_factory=dict)

    def at(self, day: str, hour: int) -> str:
        """Return the title of a meeting in an hour, or an empty text."""
        return next((title for title, slot in self.meetings.items() if slot == (day, hour)), "")

    def first_free(self, day: str) -> int:
        """Return the first hour of a day without a meeting."""
        return next(hour for hour in HOURS if not self.at(day, hour))

    def snapshot(self) -> dict[str, Any]:
        """Return the state in a form that does not depend on the order of the work, for the reward."""
        return {
            "files": dict(sorted(self.files.items())),
            "inbox": sorted((m.person, m.subject, m.text) for m in self.inbox),
            "sent": sorted((m.person, m.subject, m.text.strip()) for m in self.sent),
            "meetings": dict(sorted(self.meetings.items())),
            "sheets": {name: dict(sorted(cells.items())) for name, cells in sorted(self.sheets.items())},
        }


def furnish(rng: random.Random) -> World:
    """Return an office with content in every service."""
    world = World()
    for name in FILES[:2]:
        world.files[name] = " ".join(rng.sample(WORDS, 3))
    for person in rng.sample(PEOPLE, 2):
        world.inbox.append(Mail(person, rng.choice(WORDS), " ".join(rng.sample(WORDS, 4))))
    slots = rng.sample([(day, hour) for day in DAYS for hour in HOURS], 5)
    world.meetings = dict(zip(rng.sample(MEETINGS, 5), slots, strict=True))
    for person in PEOPLE:
        world.pages[f"{person} desk"] = (
            f"{person}: room {rng.randint(100, 399)}, phone {rng.randint(1000, 9999)}"
        )
    for name in SHEETS:
        world.sheets[name] = {"A1": "what", "B1": "count"}
        for row in range(2, rng.randint(4, 6)):
            world.sheets[name] |= {f"A{row}": rng.choice(WORDS), f"B{row}": str(rng.randint(2, 60))}
    return world
