"""Makes shell tasks from a seed, as task folders: an instruction, files, tests, a solution.

The expected results are computed in Python here, independently of the solution's commands.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from asyncrl.envs.terminal.folder import TaskFolder

WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "frost", "grove", "heron",
    "ivory", "jade", "kelp", "larch", "maple", "north", "olive", "pearl",
)  # fmt: skip
NAMES = ["notes", "list", "words", "stock", "paper", "table"]
TRIAL = """
def check(lines):
    path = Path("/app/trial file.txt")
    path.write_text("\\n".join(lines) + "\\n")
    argv = ["{script}", str(path)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0 and ran.stdout.strip() == {expect}.strip(), ran

"""
OUTPUTS = ["out", "answer", "result"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it is written to files. `expected` maps paths to contents, None for a path that must not
    exist."""

    instruction: str
    files: Mapping[str, str]
    expected: Mapping[str, str | None]
    solution: str
    checks: str = ""
    """Further test functions."""


def make_task(level: int, rng: random.Random) -> TaskFolder:
    """Return a task. Level 1 is one command on one file, 2 a pipeline over several, 3 a script to write."""
    draft = rng.choice(FAMILIES[level])(rng)
    tests = ["from pathlib import Path", "import subprocess", ""]
    for number, (name, content) in enumerate(draft.expected.items()):
        check = (
            f"assert not Path({'/app/' + name!r}).exists()"
            if content is None
            else f"assert Path({'/app/' + name!r}).read_text().strip() == {content.strip()!r}"
        )
        tests += [f"def test_{number}():", f"    {check}", ""]
    return TaskFolder(
        name=f"level-{level}",
        instruction=draft.instruction,
        files={name: text.encode() for name, text in draft.files.items()},
        tests={"test_outputs.py": ("\n".join(tests) + draft.checks).encode()},
        solution=draft.solution,
        guesses=_guesses(draft, rng),
    )


def _lines(rng: random.Random, least: int = 3, most: int = 8) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 3))) for _ in range(rng.randint(least, most))]


def _text_file(rng: random.Random) -> tuple[str, list[str], dict[str, str]]:
    """Return a file to work on, its lines, and all files."""
    first, second = rng.sample(NAMES, 2)
    lines = _lines(rng)
    files = {f"{first}.txt": "\n".join(lines) + "\n", f"{second}.txt": "\n".join(_lines(rng)) + "\n"}
    return f"{first}.txt", lines, files


def _one_command(rng: random.Random) -> Draft:
    name, lines, files = _text_file(rng)
    out = f"{rng.choice(OUTPUTS)}.txt"
    number, word = rng.randint(1, 3), rng.choice(rng.choice(lines).split())
    whole = files[name]
    what, text, command = rng.choice(
        [
            ("the number of lines of {name}", str(len(lines)), f"wc -l < {name} > {out}"),
            ("the number of words of {name}", str(len(whole.split())), f"wc -w < {name} > {out}"),
            (
                f"the first {number} lines of {{name}}",
                "\n".join(lines[:number]),
                f"head -n {number} {name} > {out}",
            ),
            (
                f"the last {number} lines of {{name}}",
                "\n".join(lines[-number:]),
                f"tail -n {number} {name} > {out}",
            ),
            (
                f"the lines of {{name}} with {word}",
                "\n".join(line for line in lines if word in line),
                f"grep {word} {name} > {out}",
            ),
            ("the sorted lines of {name}", "\n".join(sorted(lines)), f"LC_ALL=C sort {name} > {out}"),
        ]
    )
    return Draft(f"Write {what.format(name=name)} to {out}.", files, {out: text}, command)


def _move(rng: random.Random) -> Draft:
    name, _, files = _text_file(rng)
    target = f"{rng.choice(OUTPUTS)}.txt"
    verb, command, gone = rng.choice(
        [("Copy {0} to {1}.", "cp {0} {1}", False), ("Rename {0} to {1}.", "mv {0} {1}", True)]
    )
    expected: dict[str, str | None] = {target: files[name], name: None if gone else files[name]}
    return Draft(verb.format(name, target), files, expected, command.format(name, target))


def _sales(rng: random.Random) -> Draft:
    rows = [(rng.choice(WORDS[:5]), rng.randint(1, 90), rng.randint(1, 9)) for _ in range(rng.randint(6, 12))]
    key = rng.choice(rows)[0]
    column = rng.choice([2, 3])
    total = sum(row[column - 1] for row in rows if row[0] == key)  # type: ignore[misc]
    table = "item,price,count\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    name = ("price", "count")[column - 2]
    command = f"awk -F, '$1 == \"{key}\" {{ s += ${column} }} END {{ print s + 0 }}' sales.csv > total.txt"
    text = f"Sum the column {name} of sales.csv over the rows of item {key}. Write the sum to total.txt."
    return Draft(text, {"sales.csv": table}, {"total.txt": str(total)}, command)


def _frequent(rng: random.Random) -> Draft:
    files = {f"logs/{day}.log": "\n".join(_lines(rng, 5, 12)) + "\n" for day in ("mon", "tue", "wed")}
    counts = Counter(" ".join(files.values()).split())
    word, number = rng.choice(sorted(counts.items()))
    command = f"cat logs/*.log | tr ' ' '\\n' | grep -cx {word} > count.txt"
    text = f"How often does the word {word} stand in the .log files of the folder logs? Write the number to count.txt."
    return Draft(text, files, {"count.txt": str(number)}, command)


def _replace(rng: random.Random) -> Draft:
    old, new = rng.sample(WORDS, 2)
    files = {
        f"docs/{name}.txt": "\n".join([*_lines(rng), f"{old} end"]) + "\n" for name in rng.sample(NAMES, 3)
    }
    files["docs/keep.md"] = f"{old} stays\n"
    expected = {
        path: text if path.endswith(".md") else text.replace(old, new) for path, text in files.items()
    }
    text = f"Replace the word {old} by {new} in every .txt file of the folder docs. Leave other files alone."
    return Draft(text, files, expected, f"sed -i 's/{old}/{new}/g' docs/*.txt")


def _script(rng: random.Random) -> Draft:
    """A script is tested on files that did not exist when it was written."""
    number = rng.randint(1, 3)
    what, body, expect = rng.choice(
        [
            ("the number of different lines", 'sort "$1" | uniq | wc -l', "str(len(set(lines)))"),
            ("the longest line", "awk '{ if (length > n) { n = length; s = $0 } } END { print s }' \"$1\"",
             "max(lines, key=len)"),
            (f"the last {number} lines in reverse order", f'tail -n {number} "$1" | tac',
             f"'\\n'.join(lines[-{number}:][::-1])"),
            (f"every line that has {number + 1} words or more", f"awk 'NF >= {number + 1}' \"$1\"",
             f"'\\n'.join(l for l in lines if len(l.split()) >= {number + 1})"),
        ]
    )  # fmt: skip
    name = rng.choice(["report", "show", "digest"])
    trials = [_lines(rng, 6, 12) for _ in range(3)]
    checks = [TRIAL.format(script=f"/app/{name}.sh", expect=expect)]
    checks += [f"def test_trial_{i}():\n    check({lines!r})\n" for i, lines in enumerate(trials)]
    text = (
        f"Write an executable script {name}.sh: {name}.sh FILE prints {what} of FILE. Try it on example.txt."
    )
    files = {"example.txt": "\n".join(_lines(rng)) + "\n"}
    command = f"cat > {name}.sh <<'END'\n#!/bin/bash\nexport LC_ALL=C\n{body}\nEND\nchmod +x {name}.sh"
    return Draft(text, files, {}, command, "\n".join(checks))


FAMILIES: dict[int, list[Callable[[random.Random], Draft]]] = {
    1: [_one_command, _one_command, _one_command, _move],
    2: [_sales, _frequent, _replace],
    3: [_script],
}


def _guesses(draft: Draft, rng: random.Random) -> tuple[str, ...]:
    """Return one command of every kind, with files, words and numbers of the task."""
    name = rng.choice(sorted(draft.files))
    out = rng.choice(sorted(set(draft.expected) - set(draft.files)) or ["out.txt"])
    number, word = rng.randint(1, 3), rng.choice(draft.files[name].replace(",", " ").split())
    templates = [
        "wc -l < {name} > {out}", "wc -w < {name} > {out}", "LC_ALL=C sort {name} > {out}", "cp {name} {out}",
        "mv {name} {out}", "head -n {number} {name} > {out}", "tail -n {number} {name} > {out}",
        "grep {word} {name} > {out}", "rm {name}",
    ]  # fmt: skip
    return tuple(t.format(name=name, out=out, number=number, word=word) for t in templates)
