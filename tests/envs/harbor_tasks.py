"""Ten task folders in Harbor's layout whose images are made by RUN lines, each with an oracle and tests."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

TOML = """version = "1.0"

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 30.0

[environment]
build_timeout_sec = 120.0
"""
COMMIT = "git -c user.name=t -c user.email=t@localhost commit -q -m"


@dataclass(frozen=True)
class HarborTask:
    instruction: str
    dockerfile: str
    solve: str
    check: str
    """A shell command that succeeds where the work is done."""
    files: dict[str, bytes] = field(default_factory=dict)
    json_reward: bool = False


def wheel() -> bytes:
    """Return a wheel with one module, `shout`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("shout.py", "def shout(text):\n    return text.upper() + '!'\n")
        info = "shout-1.0.dist-info"
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: shout\nVersion: 1.0\n")
        packed.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        names = ["shout.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
        packed.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))
    return out.getvalue()


TASKS = {
    "wheel": HarborTask(
        "Write /app/say.py, which prints what the installed package shout makes of its argument.",
        "COPY shout-1.0-py3-none-any.whl /tmp/\n"
        "RUN python3 -m pip install --no-index --break-system-packages /tmp/shout-1.0-py3-none-any.whl",
        "printf 'import sys\\nfrom shout import shout\\nprint(shout(sys.argv[1]))\\n' > /app/say.py",
        'test "$(python3 /app/say.py hi)" = "HI!"',
        {"shout-1.0-py3-none-any.whl": wheel()},
    ),
    "compiled": HarborTask(
        "Save what the program `answer` prints in /app/out.txt.",
        "COPY answer.c /usr/src/\nRUN gcc -O1 -o /usr/local/bin/answer /usr/src/answer.c && rm /usr/src/answer.c",
        "answer > /app/out.txt",
        'test "$(cat /app/out.txt)" = "the answer is 42"',
        {"answer.c": b'#include <stdio.h>\nint main(void) { printf("the answer is %d\\n", 6 * 7); }\n'},
    ),
    "history": HarborTask(
        "The function add in /app/calc.py is wrong. Repair it and commit.",
        "RUN git init -q -b main . && printf 'def add(a, b):\\n    return a - b\\n' > calc.py && git add -A && "
        f"{COMMIT} start && git checkout -q -b fix && sed -i 's/a - b/a + b/' calc.py && {COMMIT} 'the fix' -a && "
        "git checkout -q main && git tag solved fix && git update-ref refs/remotes/origin/main fix",
        "cd /app && sed -i 's/a - b/a + b/' calc.py && " + COMMIT + " repaired -a",
        "cd /app && python3 -c 'from calc import add; assert add(2, 2) == 4' && "
        "test $(git -c safe.directory='*' rev-list --count HEAD) = 2",
    ),
    "modes": HarborTask(
        "Make /app/run.sh executable for everybody, and /app/key readable by its owner alone.",
        "RUN printf '#!/bin/sh\\necho ran\\n' > run.sh && echo secret > key && chmod 644 run.sh && chmod 664 key",
        "chmod 755 /app/run.sh && chmod 600 /app/key",
        'test "$(stat -c %a /app/run.sh)" = 755 && test "$(stat -c %a /app/key)" = 600',
    ),
    "variables": HarborTask(
        "Write the value of the variable GREETING into /app/greeting.",
        'ARG WHO=world\nENV GREETING="hello $WHO" PLACE=/opt/place\n'
        'RUN mkdir -p $PLACE && echo "$GREETING" > ${PLACE}/said',
        'echo "$GREETING" > /app/greeting',
        'test "$(cat /app/greeting)" = "hello world" && cmp /app/greeting /opt/place/said',
    ),
    "venv": HarborTask(
        "Write the Python that `python` starts (sys.prefix) into /app/prefix.",
        'RUN python3 -m venv --without-pip /opt/venv\nENV PATH="/opt/venv/bin:$PATH"',
        "python -c 'import sys; print(sys.prefix)' > /app/prefix",
        'test "$(cat /app/prefix)" = /opt/venv',
    ),
    "links": HarborTask(
        "Copy what the link /app/current leads to into /app/copy, a plain file.",
        "RUN mkdir -p /srv/releases/2 && echo second > /srv/releases/2/data && ln -s /srv/releases/2 /srv/current "
        "&& ln -s /srv/current/data current && mkdir empty",
        "cp -L /app/current /app/copy",
        'test -f /app/copy && ! test -L /app/copy && test "$(cat /app/copy)" = second && test -d /app/empty',
    ),
    "library": HarborTask(
        "Write /app/main.c, which prints twice(21) of the library in /opt/twice. It is built with "
        "`gcc main.c -I/opt/twice -L/opt/twice -ltwice`.",
        "WORKDIR /opt/twice\nCOPY twice/ .\nRUN make && rm twice.c twice.o\nWORKDIR /app",
        "printf '#include <stdio.h>\\n#include <twice.h>\\nint main(void) { printf(\"%%d\\\\n\", twice(21)); }\\n' "
        "> /app/main.c",
        'cd /app && gcc main.c -I/opt/twice -L/opt/twice -ltwice -o /tmp/main && test "$(/tmp/main)" = 42',
        {
            "twice/twice.c": b"int twice(int x) { return 2 * x; }\n",
            "twice/twice.h": b"int twice(int);\n",
            "twice/Makefile": b"libtwice.a: twice.o\n\tar rcs $@ $^\n",
        },
    ),
    "database": HarborTask(
        "Write the sum of the column amount of table sales in /data/shop.db into /app/sum.",
        'COPY ["fill.py", "/tmp/fill.py"]\nRUN ["python3", "-c", "import os; os.makedirs(\'/data\')"]\n'
        "COPY fill.py /opt/\nRUN python3 /opt/fill.py && rm /opt/fill.py",
        "python3 -c \"import sqlite3; print(sqlite3.connect('file:/data/shop.db?mode=ro', uri=True)"
        ".execute('select sum(amount) from sales').fetchone()[0])\" > /app/sum",
        'test "$(cat /app/sum)" = 4950',
        {
            "fill.py": b"import sqlite3\ndb = sqlite3.connect('/data/shop.db')\n"
            b"db.execute('create table sales (amount integer)')\n"
            b"db.executemany('insert into sales values (?)', [(n,) for n in range(100)])\ndb.commit()\n"
        },
    ),
    "removed": HarborTask(
        "Count the lines of /app/numbers that also stand in /var/lib/known, and write the count into /app/count.",
        "RUN seq 1 100 > numbers && mkdir -p /var/lib && seq 1 3 300 > /var/lib/known \\\n"
        "    # a comment within a command\n    && rm -rf /usr/share/doc/gcc\nRUN test ! -e /usr/share/doc/gcc",
        "sort /app/numbers > /tmp/a; sort /var/lib/known > /tmp/b; comm -12 /tmp/a /tmp/b | wc -l > /app/count",
        'test "$(tr -d " " < /app/count)" = 34 && test ! -e /usr/share/doc/gcc',
        json_reward=True,
    ),
}


def write_tasks(folder: Path, image: str = "debian:bookworm", names: tuple[str, ...] = tuple(TASKS)) -> Path:
    """Write the task folders below `folder`. image: what their Dockerfiles start from."""
    for name in names:
        task, place = TASKS[name], folder / name
        (place / "environment").mkdir(parents=True)
        (place / "instruction.md").write_text(task.instruction + "\n")
        (place / "task.toml").write_text(TOML)
        (place / "environment" / "Dockerfile").write_text(f"FROM {image}\nWORKDIR /app\n{task.dockerfile}\n")
        for path, data in task.files.items():
            target = place / "environment" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        (place / "solution").mkdir()
        (place / "solution" / "solve.sh").write_text(f"#!/bin/bash\n{task.solve}\n")
        (place / "tests").mkdir()
        (place / "tests" / "test.sh").write_text(_tests(task))
    return folder


def _tests(task: HarborTask) -> str:
    file = "reward.json" if task.json_reward else "reward.txt"
    one, none = ((json.dumps({"reward": n}) if task.json_reward else str(n)) for n in (1, 0))
    place = f"/logs/verifier/{file}"
    return (
        f"#!/bin/bash\nif ( {task.check} ); then echo '{one}' > {place}; else echo '{none}' > {place}; fi\n"
    )
