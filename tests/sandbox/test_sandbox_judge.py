"""Tests that judge a session run the agent's programs, which must not reach the tests or the verdict."""

from __future__ import annotations

import struct
import time

import pytest

from asyncrl.sandbox.backends import open_sandbox
from asyncrl.sandbox.jail.judging import Places, decide
from asyncrl.sandbox.protocol import Limits, SandboxSpec
from tests.sandbox.conftest import run_async

PLACES = Places("/tests", "/logs/verifier", ("/work", "/tmp"))
TAMPER = """
for place in "$LOGS" "$TESTS"; do
    echo 1 > "$place/reward.txt" || mkdir "$place/reward.txt" || ln -s /work/x "$place/reward.txt"
    chmod -R a+rwx "$place"; rm -rf "$place"/*; mv /work/data "$place/moved"
done
echo 1 > /proc/$PPID/fd/1
kill -9 $PPID
"""
WAYS = [
    "bash tamper.sh",
    "./tamper.sh",
    "timeout 5 bash tamper.sh",
    "env A=1 $PWD/tamper.sh",
    "cd sub; bash ../tamper.sh",
    "python3 -c 'import os; os.system(\"bash tamper.sh\")'",
    'python3 "$TESTS/runs.py"',
    "./own-bash tamper.sh",
    'own-bash -c \'echo 1 > "$LOGS/reward.txt"; mkdir "$LOGS/reward.json"\'',
    "(setsid bash tamper.sh &) ; sleep 0.3",
    "make -s",
]
RUNS = "import subprocess; subprocess.run(['bash', 'tamper.sh'])"


def judged(backend, files, tests, *names, timeout_s=20.0):
    """Run the tests `tests` on a session with `files`: the result, and what lies in the judge's folder then."""

    async def body():
        spec = SandboxSpec("bash", Limits(wall_s=20, processes=48))
        async with await open_sandbox(backend, spec) as box:
            for path, text in files.items():
                await box.write(path, text if isinstance(text, bytes) else text.encode())
            await box.exec(["sh", "-c", "mkdir -p sub; cp /bin/bash own-bash"])
            judge = box.judge()
            await judge.write({name: text.encode() for name, text in tests.items()})
            env = {"TESTS": judge.tests, "LOGS": judge.logs, "PATH": f"/usr/bin:/bin:{box.workdir}"}
            argv = ["bash", f"{judge.tests}/test.sh"]
            result = await judge.exec(argv, env=env, timeout_s=timeout_s, max_output_bytes=65536)
            return result, [await judge.read(name, 1000) for name in names]

    return run_async(body)


def test_a_program_under_test_writes_no_verdict_and_ends_no_test_however_it_is_started(walled):
    lines = [f'({way}) > /dev/null 2>&1\nls -A "$LOGS" "$TESTS"; echo {i}' for i, way in enumerate(WAYS)]
    tests = {"test.sh": "\n".join([*lines, 'echo 0.5 > "$LOGS/reward.txt"']), "runs.py": RUNS}
    files = {"tamper.sh": f"#!/bin/bash\n{TAMPER}", "data": "x", "Makefile": "all:\n\tbash tamper.sh\n"}
    result, (text, structured) = judged(walled, files, tests, "reward.txt", "reward.json")
    assert (text, structured) == (b"0.5\n", None), result
    assert result.ok
    shown = [line for line in result.text.splitlines() if "verifier" not in line and "/" not in line and line]
    assert [line for line in shown if line not in ("runs.py", "test.sh")] == [
        str(i) for i in range(len(WAYS))
    ]


def test_the_judges_own_programs_write_verdicts_and_the_agents_write_in_their_folders(walled):
    tests = {
        "test.sh": """set -e
        bash "$PWD/run.sh" | grep -q right
        test -e made -a -e "$TMPDIR/made"
        python3 "$TESTS/check.py"
        echo 0.25 | tee "$LOGS/reward.txt" > /dev/null
        """,
        "check.py": "import os; open(os.environ['LOGS'] + '/reward.json', 'w').write('{}')",
    }
    run = 'set -e; echo x > made; mkdir -p a/b; mv made a/b/; mv a/b/made .; echo x > "$TMPDIR/made"; echo right'
    result, rewards = judged(walled, {"run.sh": run}, tests, "reward.txt", "reward.json")
    assert rewards == [b"0.25\n", b"{}"], result


def test_tests_that_hang_are_ended_with_everything_below_them(walled):
    started = time.monotonic()
    files = {"run.sh": "trap '' TERM; sleep 1000 & sleep 1000"}
    result, _ = judged(walled, files, {"test.sh": "bash run.sh & wait"}, timeout_s=1.0)
    assert result.timed_out
    assert time.monotonic() - started < 120


def test_a_program_whose_system_calls_are_not_ours_is_ended_and_not_waited_for(walled):
    # exit(7), as 32-bit code: xor eax, eax; inc eax; mov bl, 7; int 0x80
    code, base, head = bytes.fromhex("31c040b307cd80"), 0x08048000, 52 + 32
    numbers = (2, 3, 1, base + head, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    program = b"\x7fELF\1\1\1" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", *numbers)
    program += struct.pack("<8I", 1, 0, base, base, head + len(code), head + len(code), 5, 4096) + code
    tests = {"test.sh": 'cp old old2; chmod +x old2; ./old2; echo $? > "$LOGS/reward.txt"'}
    result, (status,) = judged(walled, {"old": program}, tests, "reward.txt")
    assert not result.timed_out
    # 126 where the kernel runs no such programs.
    assert status in (b"137\n", b"126\n")


@pytest.mark.parametrize(
    ("executable", "argv", "folder", "judges"),
    [
        ("/usr/bin/bash", "bash /tests/test.sh", "/work", True),
        ("/usr/bin/python3.11", "python3 -m pytest --ctrf /logs/verifier/ctrf.json /tests/test_a.py", "/work", True),
        ("/usr/bin/python3.11", "python3 /tests/check.py /work/main.py", "/work", True),
        ("/usr/bin/python3.11", "python3 /work/main.py /tests/data", "/work", False),
        ("/usr/bin/bash", "/bin/bash ./run.sh", "/work", False),
        ("/usr/bin/bash", "bash run.sh", "/work/sub", False),
        ("/usr/bin/bash", "bash ../work/run.sh", "/tests", False),
        ("/work/a.out", "/tests/a.out", "/tests", False),
        ("/usr/bin/timeout", "timeout 10 python3 /work/main.py", "/tests", False),
        ("/usr/bin/timeout", "timeout 10 pytest /tests", "/work", True),
        ("/usr/bin/make", "make", "/work", False),
        ("/usr/bin/make", "make -C /work", "/tests", False),
        ("/usr/bin/python3.11", "python3 -c print(1)", "/work", True),
        ("/usr/bin/python3.11", "python3 - /logs/verifier/x", "/work", True),
        ("/usr/bin/python3.11", "python3", "/work", True),
        ("/usr/bin/python3.11", "python3 -m unittest", "/work", False),
        ("/usr/bin/env", "env A=/work/x sh /tests/a.sh", "/tests", True),
        ("/usr/bin/mkdir", "mkdir -p /logs/verifier", "/work", True),
        ("/usr/bin/bash", "bash -e /work/run.sh", "/tests", False),
        ("/usr/bin/bash", "bash - /work/run.sh", "/tests", False),
        ("/usr/bin/bash", "bash -lc ls", "/work", True),
        ("/usr/bin/perl", "perl -e 1", "/work", True),
        ("/usr/bin/make", "make --file=/work/Makefile", "/tests", False),
        ("/usr/bin/make", "make -C/work", "/tests", False),
        ("/usr/bin/pytest", "pytest --rootdir=/work /tests/test_a.py", "/work", True),
        ("/usr/bin/worker", "worker /workshop", "/", True),
    ],
)  # fmt: skip
def test_programs_are_the_agents_by_where_their_code_lies(executable, argv, folder, judges):
    existing = {"/work/sub/run.sh", "/work/run.sh", "/work/main.py"}
    assert decide(executable, argv.split(" "), folder, PLACES, existing.__contains__) is judges


LEAVES = 'mkdir -p "$LOGS/a/.b"; cd "$LOGS"; echo x | tee .c ..d reward.txt a/.b/e; chmod 0 a; ls -A "$LOGS" "$TESTS"'


def test_what_a_judge_has_written_is_gone_for_those_who_come_after_it(walled):
    async def body():
        async with await open_sandbox(walled, SandboxSpec("bash", Limits(wall_s=20, processes=48))) as box:
            judge = box.judge()
            env = {"TESTS": judge.tests, "LOGS": judge.logs}

            async def run(text):
                await judge.write({"test.sh": text.encode()})
                argv = ["bash", f"{judge.tests}/test.sh"]
                return (await judge.exec(argv, env=env, timeout_s=10.0, max_output_bytes=4096)).text.split()

            await judge.write({"deep/er/.hidden": b"x"})
            before = await run(LEAVES)
            await judge.clear()
            return before, await run('ls -A "$LOGS" "$TESTS"')

    before, after = run_async(body)
    assert {"..d", ".c", "a", "reward.txt", "deep", "test.sh"} <= set(before)
    assert [word for word in after if not word.endswith(":")] == ["test.sh"]
