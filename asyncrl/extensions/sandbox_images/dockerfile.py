"""What a Dockerfile says, as steps in order.

The jail follows FROM, ARG, ENV, WORKDIR, COPY, ADD of files and RUN. What says how a container is started (CMD, EXPOSE,
LABEL ...) has no part in a file system. Anything else is refused: an image that lacks a line is another image.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from asyncrl.errors import ConfigError

WITHOUT_FILES = frozenset(
    ("CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME")
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ELSEWHERE = (
    'let a container engine build such an image, with bases = { "*" = "podman" } or "docker", or unpack the image as a '
    "base"
)
NOT_COPIED = frozenset(("Dockerfile", ".dockerignore", "docker-compose.yaml", "docker-compose.yml"))
_NAME = re.compile(r"\\\$|\$(?:\{(\w+)(?:(:[-+])([^}]*))?\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Context:
    """Files of a build context by relative path, and which of them may be run."""

    files: Mapping[str, bytes]
    executable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RunStep:
    """A program that makes files."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    line: str
    """As the Dockerfile has it, for messages."""


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Files of the context by their absolute path in the image."""

    targets: tuple[tuple[str, str], ...]
    """Pairs of absolute path and path in the context."""


@dataclass(frozen=True, slots=True)
class FolderStep:
    """A folder that must be there."""

    path: str


Step = RunStep | CopyStep | FolderStep


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image: what it starts from, what is done, and what programs in it are given."""

    base: str
    """The name after FROM; "" without one."""
    steps: tuple[Step, ...]
    env: tuple[tuple[str, str], ...]
    """Variables of its programs."""
    workdir: str
    """Absolute; `/` where no line says it."""
    context: Context
    text: str
    """Of the Dockerfile."""
    engine_text: str = ""
    """The Dockerfile that a container engine is given where one stands for the base; `steps` are done in what it has
    built."""

    @property
    def runs(self) -> bool:
        """Whether a RUN line makes files that cannot be known without running it."""
        return any(isinstance(step, RunStep) for step in self.steps)

    def digest(self) -> str:
        """Return what changes with any line, file or file mode of it."""
        found = hashlib.blake2b(digest_size=16)
        found.update(json.dumps([self.text, sorted(self.context.executable)]).encode())
        for name, data in sorted(self.context.files.items()):
            if name not in NOT_COPIED:
                found.update(json.dumps([name, hashlib.blake2b(data).hexdigest()]).encode())
        return found.hexdigest()


def parse(text: str, context: Context, name: str = "Dockerfile", ignore_run: bool = False) -> Recipe:
    """Read a Dockerfile. Raises `ConfigError` with the line that cannot be followed.

    name: of the file, for messages. ignore_run: leave RUN lines out, and lines that cannot be followed.
    """
    return _Parser(context, name, ignore_run).parse(text)


def for_engine(text: str, context: Context) -> Recipe:
    """Return a recipe that a container engine follows as a whole; what can be told of it beforehand is its first
    base, and its work folder."""
    return replace(parse(text, context, ignore_run=True), steps=(), engine_text=text)


class _Parser:
    def __init__(self, context: Context, name: str, ignore_run: bool) -> None:
        self.context, self.name, self.ignore_run = context, name, ignore_run
        self.base, self.workdir = "", "/"
        self.steps: list[Step] = []
        self.env: dict[str, str] = {}
        self.arguments: dict[str, str] = {}

    def parse(self, text: str) -> Recipe:
        for line in _lines(text):
            word, _, rest = line.partition(" ")
            try:
                self._follow(word.upper(), rest.strip(), line)
            except ValueError as error:
                if not self.ignore_run:
                    raise ConfigError(f"{self.name}: line {line[:120]!r}: {error}") from error
        env = tuple(({"PATH": PATH} | self.env).items())
        return Recipe(self.base, tuple(self.steps), env, self.workdir, self.context, text)

    def _follow(self, word: str, rest: str, line: str) -> None:
        follow = getattr(self, f"_on_{word.lower()}", None)
        if follow is not None:
            follow(rest)
        elif word not in WITHOUT_FILES:
            raise ValueError(f"{word} is not followed; {ELSEWHERE}")

    def _on_from(self, rest: str) -> None:
        words = [part for part in self._filled(rest).split() if not part.startswith("--")]
        if self.base:
            raise ValueError(f"a second stage is not followed; {ELSEWHERE}")
        if not words:
            raise ValueError("names no image")
        self.base = words[0]

    def _on_arg(self, rest: str) -> None:
        for part in shlex.split(rest):
            name, found, value = part.partition("=")
            if found:
                self.arguments[name] = self._filled(value)

    def _on_env(self, rest: str) -> None:
        first = rest.split(maxsplit=1)
        if len(first) == 2 and "=" not in first[0]:
            self.env[first[0]] = self._filled(first[1])
            return
        # All of a line see what was set before it.
        pairs = [part.partition("=") for part in shlex.split(self._filled(rest))]
        if any(not found for _, found, _ in pairs):
            raise ValueError("ENV needs NAME=VALUE")
        self.env |= {name: value for name, _, value in pairs}

    def _on_workdir(self, rest: str) -> None:
        self.workdir = posixpath.normpath(posixpath.join(self.workdir, self._filled(rest).strip("\"'")))
        self.steps.append(FolderStep(self.workdir))

    def _on_user(self, rest: str) -> None:
        if rest.split(":")[0] not in ("root", "0"):
            raise ValueError(f"another user is not followed; {ELSEWHERE}")

    def _on_run(self, rest: str) -> None:
        if self.ignore_run:
            return
        words = rest.split()
        while words and words[0].startswith("--"):
            # Mounts of caches and secrets, which a build must do without where there are none.
            rest = rest.split(maxsplit=1)[1] if len(words) > 1 else ""
            words = words[1:]
        if not words or "<<" in words[0]:
            raise ValueError(f"RUN without a command, or with a here-document, is not followed; {ELSEWHERE}")
        argv = _json_list(rest) or ("/bin/sh", "-c", rest)
        env = {"PATH": PATH, "HOME": "/root"} | self.arguments | self.env
        self.steps.append(RunStep(argv, tuple(env.items()), self.workdir, f"RUN {rest}"))

    def _on_copy(self, rest: str) -> None:
        words = list(_json_list(rest)) or shlex.split(self._filled(rest))
        options, words = (
            [w for w in words if w.startswith("--")],
            [w for w in words if not w.startswith("--")],
        )
        if any(option.startswith("--from") for option in options):
            raise ValueError(f"files of another stage are not there; {ELSEWHERE}")
        if any("://" in word for word in words[:-1]):
            raise ValueError("files from elsewhere are not fetched; put them into the context")
        if len(words) < 2:
            raise ValueError("needs a source and a target")
        self.steps.append(CopyStep(tuple(copied(words[:-1], words[-1], self.workdir, self.context.files))))

    _on_add = _on_copy

    def _filled(self, text: str) -> str:
        """Return the text with its variables replaced, as far as a line before has set them."""
        known = {"PATH": PATH} | self.arguments | self.env

        def value(found: re.Match[str]) -> str:
            if found[0] == "\\$":
                return "$"
            name, kind, other = found[1] or found[4], found[2], found[3]
            if kind == ":-":
                return known.get(name) or other
            return (other if known.get(name) else "") if kind == ":+" else known.get(name, "")

        return _NAME.sub(value, text)


def _lines(text: str) -> list[str]:
    """Return the instructions, continued lines joined and comments left out."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(kept))
    return [re.sub(r"^(\w+)\s+", r"\1 ", line.strip()) for line in joined.splitlines() if line.strip()]


def _json_list(text: str) -> tuple[str, ...]:
    """Return the words of the form `["a", "b"]`; none for another form."""
    try:
        found = json.loads(text) if text.startswith("[") else ()
    except ValueError:
        return ()
    return tuple(found) if all(isinstance(word, str) for word in found) else ()


def copied(
    sources: list[str], target: str, workdir: str, files: Mapping[str, bytes]
) -> list[tuple[str, str]]:
    """Return pairs of absolute path in the image and path in the context for one COPY line. Raises `ValueError`."""
    base = posixpath.join(workdir, target)
    into = target.endswith("/") or posixpath.basename(target) in (".", "..") or len(sources) > 1
    found: list[tuple[str, str]] = []
    for source in sources:
        plain = posixpath.normpath(source.lstrip("/")) if source.strip("/") else "."
        pattern = re.compile(_glob(plain)) if any(c in plain for c in "*?[") else None
        before = len(found)
        for name in sorted(n for n in files if n not in NOT_COPIED):
            top = "/".join(name.split("/")[: plain.count("/") + 1])
            if name == plain or (pattern and pattern.fullmatch(name)):
                found.append(
                    (posixpath.join(base, posixpath.basename(name)) if into or pattern else base, name)
                )
            elif plain == "." or name.startswith(f"{plain}/") or (pattern and pattern.fullmatch(top)):
                below = name if plain == "." else name[len(top) + 1 :]
                found.append((posixpath.join(base, below), name))
        if len(found) == before and plain != ".":
            raise ValueError(f"the context has no {source!r}")
    return [(posixpath.normpath(path), name) for path, name in found]


def _glob(pattern: str) -> str:
    """Return a shell pattern as a regular expression; `*` and `?` stay within one name, as Docker's do."""
    return (
        re.escape(pattern)
        .replace(r"\*", "[^/]*")
        .replace(r"\?", "[^/]")
        .replace(r"\[", "[")
        .replace(r"\]", "]")
    )
