"""The goals of tasks: an instruction, the events meanwhile, and the required changes.

A goal's `effect` is applied to the world after all events, so the right outcome never depends on when the work was
done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from asyncrl.envs.office.world import DAYS, HOURS, PEOPLE, SHEETS, WORDS, Mail, World

Call = tuple[str, dict[str, str | int]]
Change = Callable[[World], None]


@dataclass(frozen=True, slots=True)
class Drift:
    """An event: a change by others."""

    turn: int
    """It happens after this turn, counted from 1."""
    change: Change


@dataclass(frozen=True, slots=True)
class Goal:
    text: str
    effect: Change
    acts: Callable[[World], list[Call]]
    """The expert's calls after all events."""
    looks: tuple[Call, ...] = ()
    """The expert's first calls."""
    drifts: tuple[Drift, ...] = ()
    reads: str = ""
    """Subject of a mail with instructions."""


Maker = Callable[[random.Random, World], Goal]


def fixed(text: str, effect: Change, *acts: Call, **more: Any) -> Goal:
    """A goal whose right calls are known from the start."""
    return Goal(text, effect, lambda world: list(acts), **more)


def set_cell(rng: random.Random, world: World) -> Goal:
    sheet, cell, value = rng.choice(SHEETS), f"{rng.choice('AB')}{rng.randint(2, 6)}", str(rng.randint(2, 99))
    call: Call = ("set_cell", {"name": sheet, "cell": cell, "value": value})
    return fixed(
        f"Set cell {cell} of sheet {sheet} to {value}.", lambda w: w.sheets[sheet].update({cell: value}), call
    )


def write_file(rng: random.Random, world: World) -> Goal:
    path, text = f"{rng.choice(WORDS)}.txt", " ".join(rng.sample(WORDS, 2))
    call: Call = ("write_file", {"path": path, "text": text})
    return fixed(f"Write '{text}' into file {path}.", lambda w: w.files.update({path: text}), call)


def send_mail(rng: random.Random, world: World) -> Goal:
    person, (subject, text) = rng.choice(PEOPLE), rng.sample(WORDS, 2)
    call: Call = ("send_mail", {"to": person, "subject": subject, "text": text})
    return fixed(
        f"Mail {person}: subject '{subject}', text '{text}'.",
        lambda w: w.sent.append(Mail(person, subject, text)),
        call,
    )


def cancel(rng: random.Random, world: World) -> Goal:
    title = rng.choice(list(world.meetings))

    def effect(w: World) -> None:
        del w.meetings[title]

    return fixed(f"Cancel the meeting {title}.", effect, ("cancel", {"title": title}))


def mail_total(rng: random.Random, world: World) -> Goal:
    sheet, person = rng.choice(SHEETS), rng.choice(PEOPLE)
    cells = world.sheets[sheet]
    total = str(sum(int(value) for cell, value in cells.items() if cell[0] == "B" and value.isdigit()))
    return fixed(
        f"Mail {person} the sum of column B of sheet {sheet}: subject '{sheet}', text the number.",
        lambda w: w.sent.append(Mail(person, sheet, total)),
        ("send_mail", {"to": person, "subject": sheet, "text": total}),
        looks=(("read_sheet", {"name": sheet}),),
    )


def note_phone(rng: random.Random, world: World) -> Goal:
    person, path = rng.choice(PEOPLE), f"{rng.choice(WORDS)}.txt"
    phone = world.pages[f"{person} desk"].rsplit(" ", 1)[1]
    return fixed(
        f"Find {person}'s phone number in the knowledge base and write it into file {path}.",
        lambda w: w.files.update({path: phone}),
        ("write_file", {"path": path, "text": phone}),
        looks=(("search", {"words": f"{person} phone"}), ("page", {"title": f"{person} desk"})),
    )


def file_to_cell(rng: random.Random, world: World) -> Goal:
    path, sheet, cell = rng.choice(list(world.files)), rng.choice(SHEETS), f"C{rng.randint(2, 9)}"
    text = world.files[path]
    return fixed(
        f"Copy the text of file {path} into cell {cell} of sheet {sheet}.",
        lambda w: w.sheets[sheet].update({cell: text}),
        ("set_cell", {"name": sheet, "cell": cell, "value": text}),
        looks=(("read_file", {"path": path}),),
    )


def move_as_mailed(rng: random.Random, world: World) -> Goal:
    goal, mail = _move(rng, world)
    world.inbox.append(mail)
    return goal


def move_when_mailed(rng: random.Random, world: World) -> Goal:
    """The mail arrives later."""
    goal, mail = _move(rng, world)
    arrival = Drift(rng.randint(1, 2), lambda w: w.inbox.append(mail))
    return replace(goal, text=f"{goal.text} It may not be there yet.", drifts=(arrival,))


def file_when_mailed(rng: random.Random, world: World) -> Goal:
    person, path, text = rng.choice(PEOPLE), f"{rng.choice(WORDS)}.txt", " ".join(rng.sample(WORDS, 3))
    mail = Mail(person, "minutes", text)
    return fixed(
        f"When {person}'s mail 'minutes' arrives, write its text into file {path}.",
        lambda w: w.files.update({path: text}),
        ("write_file", {"path": path, "text": text}),
        looks=(("inbox", {}),),
        drifts=(Drift(rng.randint(1, 3), lambda w: w.inbox.append(mail)),),
        reads="minutes",
    )


def book_first_free(rng: random.Random, world: World) -> Goal:
    """Somebody takes the first free hour right after the first turn."""
    day = rng.choice(DAYS)
    other = rng.choice(list(world.meetings))
    hour = world.first_free(day)

    def effect(w: World) -> None:
        w.meetings["Planning"] = (day, w.first_free(day))

    return Goal(
        f"Book the meeting Planning at the first free hour on {day}. Mind that other meetings move.",
        effect,
        lambda w: [("book", {"title": "Planning", "day": day, "hour": w.first_free(day)})],
        (("meetings", {"day": day}),),
        (Drift(1, lambda w: w.meetings.update({other: (day, hour)})),),
    )


def _move(rng: random.Random, world: World) -> tuple[Goal, Mail]:
    """A meeting to be moved to the hour that a mail names."""
    title, person = rng.choice(list(world.meetings)), rng.choice(PEOPLE)
    day = rng.choice(DAYS)
    hour = rng.choice([h for h in HOURS if not world.at(day, h)])
    goal = fixed(
        f"Move the meeting {title} to the time that {person}'s mail '{title}' names.",
        lambda w: w.meetings.update({title: (day, hour)}),
        ("move", {"title": title, "day": day, "hour": hour}),
        looks=(("inbox", {}),),
        reads=title,
    )
    return goal, Mail(person, title, f"{day} {hour}")


MAKERS: dict[Maker, tuple[int, frozenset[str]]] = {
    set_cell: (1, frozenset({"sheets"})),
    write_file: (1, frozenset({"files"})),
    send_mail: (1, frozenset({"mail"})),
    cancel: (1, frozenset({"calendar"})),
    mail_total: (2, frozenset({"mail", "sheets"})),
    note_phone: (2, frozenset({"files", "knowledge"})),
    file_to_cell: (2, frozenset({"files", "sheets"})),
    move_as_mailed: (2, frozenset({"calendar", "mail"})),
    move_when_mailed: (3, frozenset({"calendar", "mail"})),
    file_when_mailed: (3, frozenset({"files", "mail"})),
    book_first_free: (3, frozenset({"calendar"})),
}
"""Goal -> its level and the services it needs."""
