"""Rooms, locked doors and keys: bring the crown home."""

from __future__ import annotations

import itertools
import random
from collections import deque

from asyncrl.envs.textgame.game import Reply, level_value

STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
NAMES = ["hall", "cellar", "library", "kitchen", "attic", "garden", "chapel", "stable", "tower", "study"]
COLOURS = ["red", "blue", "green"]
State = tuple[int, frozenset[str]]
"""Room and things carried."""


class Adventure:
    """A tree of rooms. Levels: 4, 6 or 9 rooms with up to 1, 2 or 3 locked doors on the way to the crown.

    A door opens if the player carries the key of its colour; taking the crown wins the game.
    """

    def __init__(self, seed: int, level: int) -> None:
        rng = random.Random(f"adventure/{seed}")
        self.rooms = level_value(level, (4, 6, 9))
        self.exits: list[dict[str, int]] = [{}]
        self._build(rng)
        self.names = rng.sample(NAMES, self.rooms)
        self.doors: dict[tuple[int, int], str] = {}
        self.things: dict[str, int] = {}
        self._lock(rng, level)
        self.state: State = (0, frozenset())
        self.max_turns = 2 * len(self._plan()) + 2
        self.key = f"{self.names} {self.exits} {self.doors} {self.things}"
        self.rules = 'Find the crown. Commands: "go north", "take red key", "take crown".'

    def look(self) -> str:
        room, carried = self.state
        exits = []
        for way, target in sorted(self.exits[room].items()):
            colour = self.doors.get(_edge(room, target))
            locked = colour is not None and f"{colour} key" not in carried
            exits.append(f"{way} ({colour} door)" if locked else way)
        here = sorted(t for t, where in self.things.items() if where == room and t not in carried)
        return f"{self.names[room]}. exits: {', '.join(exits)}. here: {', '.join(here) or 'nothing'}"

    def play(self, command: str) -> Reply:
        if command == "take crown" and self.things["crown"] == self.state[0]:
            return Reply("you have the crown", over=True, won=True)
        after = self._after(self.state, command)
        if after is None:
            return Reply("you cannot do that", valid=False)
        self.state = after
        return Reply(self.look())

    def expert(self) -> str:
        return self._plan()[0]

    def guess(self, rng: random.Random) -> str:
        return rng.choice([c for c in self._commands(self.state[0]) if self._allowed(self.state, c)])

    def _build(self, rng: random.Random) -> None:
        places = [(0, 0)]
        while len(places) < self.rooms:
            room = rng.randrange(len(places))
            way = rng.choice(list(STEPS))
            place = (places[room][0] + STEPS[way][0], places[room][1] + STEPS[way][1])
            if place in places:
                continue
            self.exits[room][way] = len(places)
            self.exits.append({BACK[way]: room})
            places.append(place)

    def _lock(self, rng: random.Random, level: int) -> None:
        """Put the crown far away and lock doors on the way, each key on the near side of its door."""
        parents = self._parents()
        depth = [len(_path(parents, room)) for room in range(self.rooms)]
        crown = depth.index(max(depth))
        self.things["crown"] = crown
        path = _path(parents, crown)
        for colour, (near, far) in zip(COLOURS[:level], itertools.pairwise(path), strict=False):
            # Rooms whose path from the start does not pass this door.
            reachable = [r for r in range(self.rooms) if far not in _path(parents, r)]
            self.doors[_edge(near, far)] = colour
            self.things[f"{colour} key"] = rng.choice(reachable)

    def _parents(self) -> list[int]:
        parents = [-1] * self.rooms
        for room, exits in enumerate(self.exits):
            for target in exits.values():
                if target > room:
                    parents[target] = room
        return parents

    def _commands(self, room: int) -> list[str]:
        return [f"go {way}" for way in sorted(self.exits[room])] + [f"take {t}" for t in sorted(self.things)]

    def _allowed(self, state: State, command: str) -> bool:
        won = command == "take crown" and self.things["crown"] == state[0]
        return won or self._after(state, command) is not None

    def _after(self, state: State, command: str) -> State | None:
        """Return the state after a command, None if it is impossible."""
        room, carried = state
        verb, _, what = command.partition(" ")
        if verb == "take" and self.things.get(what) == room and what not in carried and what != "crown":
            return room, carried | {what}
        if verb != "go" or (target := self.exits[room].get(what)) is None:
            return None
        colour = self.doors.get(_edge(room, target))
        return None if colour and f"{colour} key" not in carried else (target, carried)

    def _plan(self) -> list[str]:
        """Return the shortest list of commands that wins from here (breadth-first)."""
        queue: deque[tuple[State, list[str]]] = deque([(self.state, [])])
        seen = {self.state}
        while queue:
            state, commands = queue.popleft()
            if state[0] == self.things["crown"]:
                return [*commands, "take crown"]
            for command in self._commands(state[0]):
                after = self._after(state, command)
                if after is not None and after not in seen:
                    seen.add(after)
                    queue.append((after, [*commands, command]))
        raise AssertionError("every key lies on the near side of its door")


def _edge(a: int, b: int) -> tuple[int, int]:
    return min(a, b), max(a, b)


def _path(parents: list[int], room: int) -> list[int]:
    """Return the rooms from the start to `room`, both included."""
    path = [room]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]
