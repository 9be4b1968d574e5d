"""The code blocks of the project's pages, and what the pages' source says about running them.

A fenced block is run by its language: `console` holds commands, `python` a program, `toml` part of a recipe; `text` is
something to look at. A comment in the page's source, right above the block, changes that:

    <!-- docs: not run: REASON -->     why a reader's machine can do it and a test cannot
    <!-- docs: save as FILE -->        the block is a file of the reader's own
    <!-- docs: with WORDS -->          words added to each command, which keep the test short
    <!-- docs: with BEGINNING: WORDS; ... -->     words added to the commands that begin so
    <!-- docs: as in PAGE -->          the block's commands are run there
    <!-- docs: servers -->             each command serves until it is stopped
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ("console", "python", "toml", "text")
FENCE = re.compile(
    r"(?:^<!-- docs: (?P<note>.*?) -->\n\n?)?^```(?P<language>\w*)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its page, first line's number, language, text, and the comment above it."""

    page: str
    line: int
    language: str
    text: str
    note: str = ""

    def said(self, key: str) -> str:
        """Return what the comment says after `key`, or ""."""
        return self.note.removeprefix(key).strip(" :") if self.note.startswith(key) else ""

    def added(self, command: str) -> str:
        """Return the words that the comment adds to a command."""
        for part in self.said("with").split(";"):
            beginning, separator, words = part.rpartition(": ")
            if not separator or command.startswith(f"asyncrl {beginning.strip()}"):
                return " ".join(words.split())
        return ""

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the pages of the repository, relative to its root."""
    found = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("docs", "recipes", "envs"):
        found += sorted((ROOT / folder).rglob("*.md"))
    return [str(path.relative_to(ROOT)) for path in found if path.name != "instruction.md"]


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = (ROOT / page).read_text()
    return [
        Block(page, text[: m.start("text")].count("\n"), m["language"], m["text"], m["note"] or "")
        for m in FENCE.finditer(text)
    ]


def spans(page: str) -> list[str]:
    """Return the inline code of a page."""
    text = FENCE.sub("", (ROOT / page).read_text())
    return [" ".join(span.split()) for span in SPAN.findall(text)]
