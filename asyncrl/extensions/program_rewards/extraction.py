"""Which part of an answer is the program. Each benchmark has its rule."""

from __future__ import annotations

import re
from collections.abc import Iterable

from asyncrl.rewards.reasoning import after_reasoning

_DEFINED = re.compile(
    r"^[ \t]{0,40}(?:async[ \t]{1,4})?(?:def|class)[ \t]{1,8}(\w{1,200})|^(\w{1,200})[ \t]{0,4}=",
    re.MULTILINE,
)
_LINE_END = re.compile(r"\r\n|\n|\r")
_BEGIN = re.compile(r"^[ \t]{0,8}\[BEGIN\][ \t]{0,8}$", re.MULTILINE)
_DONE = re.compile(r"^[ \t]{0,8}\[DONE\]", re.MULTILINE)
"""What stands around a program in MBPP's own prompt, which may end in the first of them."""


def blocks(text: str) -> list[str]:
    """Return the fenced blocks of an answer, in order, in one pass; the last one may not be closed."""
    found: list[str] = []
    opened: list[str] | None = None
    # Lines end as in a program: other ends that Python's `splitlines` knows, such as U+2028, stand in its texts.
    for line in _LINE_END.split(after_reasoning(text)):
        if line.lstrip().startswith("```"):
            rest = line.strip().strip("`").strip()
            if opened is None:
                # "```print(1)```" is a block in one line.
                if line.strip().endswith("```") and len(line.strip()) > 6 and rest:
                    found.append(rest)
                else:
                    opened = []
            else:
                found.append("\n".join(opened))
                opened = None
        elif opened is not None:
            closed, fence, _ = line.partition("```")
            opened.append(closed if fence else line)
            if fence:
                found.append("\n".join(opened))
                opened = None
    if opened is not None:
        found.append("\n".join(opened))
    return found


def last_block(text: str) -> str:
    """Return the last fenced block, else the whole text: LiveCodeBench's rule, and that of `envs/code`."""
    found = blocks(text)
    return (found[-1] if found else after_reasoning(text)).strip("\n")


def defining_block(text: str, names: Iterable[str]) -> str:
    """Return the first fenced block that defines one of `names`, else the first, else what stands between "[BEGIN]" and
    "[DONE]", else the whole text.

    The rule of HumanEval and MBPP: what follows the function, such as examples of its use, does not count.
    """
    wanted = set(names)
    found = blocks(text)
    for block in found:
        if wanted & defined(block):
            return block.strip("\n")
    if found:
        return found[0].strip("\n")
    done = _DONE.split(after_reasoning(text), maxsplit=1)[0]
    return _BEGIN.split(done, maxsplit=1)[-1].strip("\n")


def defined(program: str) -> set[str]:
    """Return the names that a program defines at the start of a line."""
    return {one or other for one, other in _DEFINED.findall(program)}
