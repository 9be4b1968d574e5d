"""Makes TextWorld games from a seed, once each, in a cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncrl.extensions.env_adapters.requirements import need

EXTRA = "textworld"
_making = threading.Lock()
_each: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


@dataclass(frozen=True, slots=True)
class GameSize:
    """The size of a made game: rooms, objects besides the quest's, and commands of the quest."""

    rooms: int
    objects: int
    quest_length: int

    def check(self) -> None:
        """Raise `ValueError` naming the value that is out of range."""
        for name, value, most in (
            ("rooms", self.rooms, 20),
            ("objects", self.objects, 20),
            ("quest_length", self.quest_length, 10),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ValueError(f"{name}: must be an integer from 1 to {most}, got {value!r}")


def game_file(size: GameSize, seed: int, cache: Path) -> Path:
    """Return the game of a seed, made and compiled unless it is in the cache (2 s if small, 12 s if large)."""
    library = need("textworld", EXTRA)
    described = json.dumps([library.__version__, asdict(size), seed])
    path = cache / f"{hashlib.sha256(described.encode()).hexdigest()[:24]}.z8"
    with _each[path]:
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                _make(library, size, seed, Path(folder) / path.name)
                # The compiled game is written last: whoever finds it also finds its description.
                for suffix in (".json", ".z8"):
                    os.replace(Path(folder) / f"{path.stem}{suffix}", path.with_suffix(suffix))
    return path


def _make(library: Any, size: GameSize, seed: int, path: Path) -> None:
    options = library.GameOptions()
    options.path, options.seeds = str(path), seed
    options.nb_rooms, options.nb_objects = size.rooms, size.objects
    options.chaining.min_length = options.chaining.max_length = size.quest_length
    options.chaining.max_depth = size.quest_length
    generator = need("textworld.generator", EXTRA)
    # The generator's knowledge base is shared between threads; the compiler is a process.
    with _making:
        game = generator.make_game(options)
    generator.compile_game(game, options)
