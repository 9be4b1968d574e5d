"""Terminal: task folders, the shell's state and its ends, and tests that the agent neither sees nor reaches."""

import asyncio
import os
import random
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.terminal import verify
from asyncrl.envs.terminal.env import Terminal
from asyncrl.envs.terminal.folder import find_folders, read_folder, rename_paths
from asyncrl.envs.terminal.generate import FAMILIES, make_task
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.types import Task
from tests.envs.playing import play

FOLDERS = Path(__file__).parents[2] / "recipes" / "terminal_grpo" / "tasks"
DONE = Action("done")


def make(seed=0, **config):
    return Terminal(Task("t", "terminal", seed), **config)


def shell(*commands):
    return Action("", tuple(ToolCall(f"call-{i}", "shell", {"command": c}) for i, c in enumerate(commands)))


def shown(step):
    return [message["content"] for message in step.messages]


def write_task(path, tests, name="test.sh", **files):
    (path / "tests").mkdir(parents=True)
    (path / "environment").mkdir()
    (path / "instruction.md").write_text("Do it in /app.")
    (path / "tests" / name).write_text(tests)
    for file, text in files.items():
        (path / "environment" / file).write_text(text)
    return path.parent


# -- hosts ------------------------------------------------------------------------------------------------------

FETCH = "python3 -c \"import urllib.request as u; print(u.urlopen('{url}/page', timeout=9).read().decode())\""


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "page").write_text("fetched")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "pages"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("setting", "agent", "reward"),
    [("test_hosts", False, 1.0), ("allow_hosts", True, 1.0), (None, False, 0.0)],
    ids=["tests alone", "agent and tests", "nobody"],
)
def test_hosts_are_reached_by_those_whom_the_settings_name(tmp_path, pages, setting, agent, reward):
    fetch = FETCH.format(url=f"http://{pages}")
    folder = write_task(tmp_path / "tasks" / "t", f'test "$({fetch})" = fetched')
    env = Terminal(
        Task("t", "terminal", 0, "train", {"folder": str(folder / "t")}),
        folder=str(folder), **({setting: [pages]} if setting else {}),
    )  # fmt: skip
    first, last = play(env, shell(fetch), DONE)
    assert (shown(first) == ["fetched"], last.reward) == (agent, reward)


def test_a_host_that_no_allow_list_takes_is_refused_by_its_key():
    with pytest.raises(ValueError, match=r"test_hosts: entry '\*\.org' of an allow-list must be 'host'"):
        Terminal(Task("t", "terminal", 0, "train"), test_hosts=["*.org"])


# -- the shell --------------------------------------------------------------------------------------------------


def test_the_shell_keeps_folder_variables_and_functions_between_turns():
    one, two = play(
        make(),
        shell("mkdir -p a/b; cd a/b; X=41; twice() { echo $1$1; }"),
        shell("pwd; echo $((X + 1)); twice o"),
    )
    assert shown(one) == ["(no output)"]
    assert shown(two) == ["/work/a/b\n42\noo"]


def test_commands_of_one_turn_run_in_their_order():
    (step,) = play(make(), shell("sleep 0.2; echo a > x", "cat x", "echo b >> x; wc -l < x"))
    assert shown(step) == ["(no output)", "a", "2"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("false", "(exit status 1)"),
        ("echo no >&2; exit_status() { return 3; }; exit_status", "no\n(exit status 3)"),
        ("cat", "(no output)"),
        ("echo 'open", None),
        ("printf 'no newline'", "no newline"),
        ('echo $((1 + 1)) `echo x` "$HOME" \'a"b\'', '2 x /work a"b'),
    ],
)
def test_what_a_command_writes_and_its_status_are_shown(command, expected):
    step, after = play(make(), shell(command), shell("echo alive"))
    if expected is None:
        assert "unexpected EOF" in shown(step)[0] and "exit status" in shown(step)[0]
    else:
        assert shown(step) == [expected]
    assert shown(after) == ["alive"]


def test_a_shell_that_ends_or_hangs_is_started_again():
    steps = play(
        make(command_timeout_s=1.0),
        shell("echo kept > f; exit 3"),
        shell("cat f"),
        shell("sleep 60"),
        shell("cat f"),
    )
    assert [shown(step)[0] for step in steps] == [
        "the shell has ended and was started again",
        "kept",
        "error: the command took longer than 1 s; the shell was started again",
        "kept",
    ]


def test_long_output_is_shown_by_its_ends():
    (step,) = play(make(shown_characters=100), shell("seq 10000"))
    assert shown(step)[0].startswith("1\n2\n3")
    assert shown(step)[0].endswith("9999\n10000")
    assert "characters left out" in shown(step)[0]


# -- judging ----------------------------------------------------------------------------------------------------


def test_the_tests_are_nowhere_while_the_agent_works(tmp_path):
    folder = write_task(tmp_path / "t", "grep -r SECRET''WORD /tests && exit 0\n# SECRETWORD")
    step, end = play(
        make(folder=str(folder)),
        shell("grep -r SECRET''WORD /work /tmp /dev/shm; ls -A /work /tmp; ls -d /tests /logs"),
        DONE,
    )
    assert shown(step)[0].startswith("/tmp:\n\n/work:\nls: cannot access '/tests'")
    assert (end.done, end.reward) == (True, 1.0)


def test_the_verdict_is_the_exit_status_when_nothing_else_is_written(tmp_path):
    folder = write_task(tmp_path / "t", "test -e /app/made")
    end = play(make(folder=str(folder)), DONE)[-1]
    assert (end.reward, end.components["tests_passed"]) == (0.0, 0.0)
    assert play(make(folder=str(folder)), shell("touch made"), DONE)[-1].reward == 1.0


@pytest.mark.parametrize(
    ("line", "reward"),
    [
        ("echo 0.25 > /logs/verifier/reward.txt", 0.25),
        ("""echo '{"reward": 0.5, "speed": 2}' > /logs/verifier/reward.json""", 0.5),
        ("""cd /logs/verifier; echo 1 > reward.txt; echo '{"reward": 0.75}' > reward.json""", 0.75),
        ("echo 7 > /logs/verifier/reward.txt", 1.0),
        ("echo 0 > /logs/verifier/reward.txt", 0.0),
        ("echo 1 > /logs/verifier/reward.txt; exit 1", 1.0),
    ],
)
def test_rewards_written_as_harbor_does_are_read(tmp_path, line, reward):
    folder = write_task(tmp_path / "t", f"mkdir -p /logs/verifier\n{line}\n")
    end = play(make(folder=str(folder)), DONE)[-1]
    assert (end.reward, end.components["tests_passed"]) == (reward, reward)


def test_a_reward_that_is_no_number_is_the_environments_failure(tmp_path):
    folder = write_task(tmp_path / "t", "echo well > /logs/verifier/reward.txt")
    with pytest.raises(EnvironmentFailure, match="holds no reward"):
        play(make(folder=str(folder)), DONE)


def test_tests_without_a_plain_function_are_the_environments_failure(tmp_path):
    folder = write_task(tmp_path / "t", "import pytest\n", "test_outputs.py")
    with pytest.raises(EnvironmentFailure, match="has no plain test function"):
        play(make(folder=str(folder)), DONE)


PLAIN_TESTS = """
from pathlib import Path
import subprocess
def test_made():
    assert Path("/app/made").exists()
class TestMore:
    def test_script(self):
        ran = subprocess.run(["bash", "/app/x.sh"], capture_output=True, stdin=subprocess.DEVNULL, timeout=5)
        assert ran.stdout == b"ok\\n"
"""


def test_plain_test_functions_are_counted(tmp_path):
    folder = write_task(tmp_path / "t", PLAIN_TESTS, "test_outputs.py")
    half = play(make(folder=str(folder)), shell("touch made"), DONE)[-1]
    assert (half.reward, half.success, half.components["tests_passed"]) == (0.0, False, 0.5)
    whole = play(make(folder=str(folder)), shell("touch made; echo 'echo ok' > x.sh"), DONE)[-1]
    assert (whole.reward, whole.success, whole.components["tests_passed"]) == (1.0, True, 1.0)


ATTACKS = {
    "a daemon writes the verdict": "(setsid bash -c 'while :; do for d in /work/.verifier-*; do "
    "echo 1 > $d/logs/reward.txt; done; done' >/dev/null 2>&1 &)",
    "bash reads a planted profile": "echo 'exit 0' | tee .bashrc .profile .bash_profile .bash_login > /dev/null; "
    "export BASH_ENV=/work/.bashrc",
    "python reads a planted module": "mkdir -p .local/lib/python3.11/site-packages; echo 'import os; os._exit(0)' | "
    "tee .local/lib/python3.11/site-packages/usercustomize.py json.py sitecustomize.py > /dev/null",
    # benchflow#115.
    "variables and a search path of the agent's": "mkdir -p bin; "
    "printf '#!/bin/bash\\nexit 0\\n' | tee bin/python3 bin/test > /dev/null; chmod +x bin/*; "
    "export PATH=/app/bin:$PATH PYTHONSTARTUP=/app/x.py PYTHONPATH=/app LD_PRELOAD=/app/x.so",
    "a path file and a configuration of the tests": "mkdir -p .local/lib/python3.11/site-packages; "
    "echo 'import os; os._exit(0)' > .local/lib/python3.11/site-packages/x.pth; "
    "printf '[pytest]\\naddopts = --co\\n' > pytest.ini; echo 'import os; os._exit(0)' > conftest.py",
    # SWE-bench#601.
    "output as of tests that passed": "echo '=== 1 passed in 0.10 seconds ==='; echo 'ok' > out.txt",
    "functions in the place of programs": "python3() { return 0; }; test() { return 0; }; export -f python3 test",
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_the_agent_does_not_reach_its_judge(tmp_path, attack):
    folder = write_task(tmp_path / "t", "python3 -c 'import sys; sys.exit(1)'; test -e /app/made")
    end = play(make(folder=str(folder)), shell(ATTACKS[attack]), DONE)[-1]
    assert (end.done, end.reward) == (True, 0.0)


RUNS_THE_PROGRAM = """
python3 -m unittest discover -s /tests -p 'check.py' > /dev/null 2>&1 || exit 1
out=$(bash /app/run.sh 2> /dev/null)
if [ "$out" = right ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
exit 0
"""
CHECK = """
import subprocess, unittest
class Check(unittest.TestCase):
    def test_program(self):
        ran = subprocess.run(["bash", "/app/run.sh"], capture_output=True, stdin=subprocess.DEVNULL, timeout=20)
        self.assertEqual(ran.stdout, b"right\\n")
"""
FROM_THE_PROGRAM = {
    "a folder in the place of the reward, and another reward": "mkdir -p /logs/verifier/reward.txt; "
    "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "other tests": "chmod -R u+w /tests; rm -f /tests/*; echo 'exit 0' > /tests/test.sh; echo > /tests/check.py",
    "a reward of its own, and the end of the tests": "echo 1 > /logs/verifier/reward.txt; kill -9 $PPID",
    "a folder that takes no reward": "chmod 500 /logs/verifier; :",
    "a reward by a process that stays": "(setsid bash -c 'while :; do "
    "for i in {1..50}; do echo 1 > /logs/verifier/reward.txt; done; sleep 0.02; done' &)",
    "a link in the place of the reward": "ln -s /work/mine /logs/verifier/reward.txt; echo 1 > /work/mine",
}
INSTEAD_OF_A_LIBRARY = (
    "missing.py",
    "unittest/__main__.py",
    "unittest/__init__.py",
    "subprocess.py",
    "sitecustomize.py",
)


def write_checked_task(path):
    folder = write_task(path, RUNS_THE_PROGRAM)
    (path / "tests" / "check.py").write_text(CHECK)
    return folder


@pytest.mark.parametrize("attack", list(FROM_THE_PROGRAM))
def test_a_program_that_the_tests_run_does_not_reach_the_reward(tmp_path, attack):
    folder = write_checked_task(tmp_path / "t")
    program = f"cat > run.sh <<'END'\n{FROM_THE_PROGRAM[attack]}\nEND"
    end = play(make(folder=str(folder)), shell(program), DONE)[-1]
    assert (end.done, end.reward) == (True, 0.0)
    assert play(make(folder=str(folder)), shell("echo 'echo right' > run.sh"), DONE)[-1].reward == 1.0


@pytest.mark.parametrize("file", INSTEAD_OF_A_LIBRARY)
def test_a_module_of_the_agents_does_not_stand_in_for_the_standard_library(tmp_path, file):
    folder = write_task(
        tmp_path / "t",
        "cd /app; python3 -m unittest discover -s /tests -p 'check.py' && python3 -m missing /tests",
    )
    (tmp_path / "t" / "tests" / "check.py").write_text(CHECK)
    program = f"mkdir -p unittest; echo 'import os; os._exit(0)' > {file}"
    end = play(make(folder=str(folder)), shell(program), DONE)[-1]
    assert (end.done, end.reward) == (True, 0.0)


def test_a_program_still_finds_its_own_modules(tmp_path):
    folder = write_checked_task(tmp_path / "t")
    program = "echo 'text = \"right\"' > words.py; echo 'from words import text; print(text)' > main.py; "
    end = play(make(folder=str(folder)), shell(program + "echo 'python3 main.py' > run.sh"), DONE)[-1]
    assert end.reward == 1.0


# -- what the agent does to its session -------------------------------------------------------------------------

HARMS = {
    "closed folder": "chmod 000 /work",
    "full disk": "for f in a b c d e; do cat /dev/zero > $f; done; :",
    "full disk but for the tests": "for f in a b c d e; do cat /dev/zero > $f; done; head -c 16000 < a > b",
    "killed shell": "(sleep 0.3; kill -9 $$) &",
    "stopped shell": "kill -STOP $$",
    "everything killed": "kill -9 -1",
}


@pytest.mark.parametrize("harm", list(HARMS))
def test_what_the_agent_does_to_its_session_loses_the_episode_and_does_not_void_it(tmp_path, harm):
    folder = write_task(
        tmp_path / "t",
        "test -e /app/made && echo 1 > /logs/verifier/reward.txt\necho 0 > /logs/verifier/reward.txt",
    )
    env = make(folder=str(folder), command_timeout_s=1.0)
    *_, end = play(env, shell(HARMS[harm], "sleep 0.5"), shell("echo x"), DONE)
    assert (end.done, end.reward) == (True, 0.0)


def test_a_shell_that_ends_between_two_turns_is_started_again():
    env = make()

    async def whole():
        try:
            await env.step(shell("(sleep 0.2; kill -9 $$) &"))
            await asyncio.sleep(1)
            return [await env.step(shell("echo x")) for _ in range(2)]
        finally:
            await env.close()
            await LauncherClient.close_shared()

    lost, after = asyncio.run(whole())
    assert shown(lost) == ["the shell has ended and was started again; the command was not run"]
    assert shown(after) == ["x"]


def test_an_empty_reward_is_none(tmp_path):
    folder = write_task(tmp_path / "t", "> /logs/verifier/reward.txt")
    assert play(make(folder=str(folder)), DONE)[-1].reward == 0.0


READ_THE_TOKEN = r"""touch made; cat > x.sh <<'END'
python3 - $PPID 2>/dev/null <<'PY' && echo ok
import re, sys
found = []
for line in open(f"/proc/{sys.argv[1]}/maps"):
    start, end = (int(x, 16) for x in line.split()[0].split("-"))
    if "rw" in line.split()[1]:
        with open(f"/proc/{sys.argv[1]}/mem", "rb") as memory:
            memory.seek(start)
            found += re.findall(rb"\b[0-9a-f]{16}\b", memory.read(end - start))
sys.exit(not found)
PY
END
"""


@pytest.mark.parametrize(
    ("hardened", "traced", "reward"), [(True, False, 0.0), (False, True, 0.0), (False, False, 1.0)]
)
def test_a_script_that_the_tests_run_cannot_read_the_verdicts_token(
    tmp_path, monkeypatch, hardened, traced, reward
):
    if not traced:
        boot = LauncherClient._boot.__func__

        async def untraced(cls):
            client = await boot(cls)
            client.traces = False
            return client

        monkeypatch.setattr(LauncherClient, "_boot", classmethod(untraced))
    if not hardened:
        open_text = (
            verify.runner_text()
            .replace("ctypes.CDLL(None).prctl(", "str((")
            .replace("0, 0)\n", "0, 0))\n", 1)
        )
        monkeypatch.setattr(verify, "runner_text", lambda: open_text)
    folder = write_task(tmp_path / "t", PLAIN_TESTS, "test_outputs.py")
    end = play(make(folder=str(folder)), shell(READ_THE_TOKEN), DONE)[-1]
    assert (end.done, end.reward) == (True, reward)


def test_a_full_disk_is_the_agents_fault():
    end = play(
        make(), shell("cat /dev/zero > a; cat /dev/zero > b; cat /dev/zero > c; cat /dev/zero > d; :"), DONE
    )[-1]
    assert (end.done, end.reward) == (True, 0.0)


def test_the_turn_limit_judges_what_is_there(tmp_path):
    folder = write_task(tmp_path / "t", "test -e /app/made")
    (end,) = play(make(folder=str(folder), max_turns=1), shell("touch made"))
    assert (end.done, end.reward, end.truncated) == (True, 1.0, False)
    (end,) = play(make(folder=str(folder), max_turns=1), shell("touch other"))
    assert (end.done, end.reward, end.truncated) == (True, 0.0, True)


# -- task folders -----------------------------------------------------------------------------------------------


def test_a_dockerfiles_copy_lines_say_where_files_go(tmp_path):
    folder = write_task(tmp_path / "t", "true", one="1", two="2")
    context = tmp_path / "t" / "environment"
    (context / "sub").mkdir()
    (context / "sub" / "three").write_text("3")
    (context / "Dockerfile").write_text(
        "FROM debian:12\n# RUN nothing\nWORKDIR /srv/job\nCOPY --chown=1:1 one data/\n"
        "COPY two /srv/job/zwei\nCOPY sub more\n"
    )
    task = read_folder(folder / "t")
    assert task.files == {"data/one": b"1", "zwei": b"2", "more/three": b"3"}
    assert task.workdir == "/srv/job"
    (context / "Dockerfile").write_text("FROM debian:12\nWORKDIR /app\nCOPY . .\n")
    assert set(read_folder(folder / "t").files) == {"one", "two", "sub/three"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("COPY one /etc/one", "outside of /app"),
        ("COPY --from=build one .", "files of another stage are not there; let a container engine build"),
        ("USER agent", "another user is not followed"),
        ("COPY two .", "the context has no 'two'"),
    ],
)
def test_a_dockerfile_that_cannot_be_kept_is_refused(tmp_path, line, message):
    folder = write_task(tmp_path / "t", "true", one="1", Dockerfile=f"FROM debian:12\nWORKDIR /app\n{line}\n")
    with pytest.raises(ConfigError, match=message):
        read_folder(folder / "t")


def test_a_task_has_the_memory_that_its_folder_says(tmp_path):
    folder = write_task(tmp_path / "t", "true")
    commands = shell("python3 -c 'print(len(b\"x\" * 700_000_000))' 2>&1 | tail -n 1")
    assert "700000000" not in shown(play(make(folder=str(folder)), commands)[0])[0]
    (folder / "t" / "task.toml").write_text("[environment]\nmemory_mb = 1024\n")
    assert shown(play(make(folder=str(folder)), commands)[0]) == ["700000000"]
    (folder / "t" / "task.toml").write_text("[environment]\nmemory_mb = '1G'\n")
    with pytest.raises(ConfigError, match=r"environment\.memory_mb: must be a whole number"):
        read_folder(folder / "t")


def test_a_folder_without_tests_or_without_tasks_is_refused(tmp_path):
    folder = write_task(tmp_path / "t", "true", "other.py")
    with pytest.raises(ConfigError, match=r"must hold test\.sh or test_outputs\.py"):
        read_folder(folder / "t")
    with pytest.raises(ConfigError, match=r"holds no folder with an instruction\.md"):
        find_folders(tmp_path / "t")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cd /app && ls /app/data", "cd /work && ls /work/data"),
        ("/apple /srv/app /app-old /app.py x/app", "/apple /srv/app /app-old /app.py x/app"),
        ("in /app.", "in /work."),
        ("'/app'", "'/work'"),
        ("python3 /tests/a.py > /logs/verifier/reward.txt", "python3 T/a.py > L/reward.txt"),
    ],
)
def test_harbors_fixed_paths_become_the_sandboxes(text, expected):
    assert rename_paths(text, "/app", "T", "L") == expected


@pytest.mark.parametrize(
    "linked", ["instruction.md", "task.toml", "solution/solve.sh", "solution", "environment", "tests", "."]
)
def test_a_folder_whose_parts_are_links_out_of_it_is_refused(tmp_path, linked):
    """Its maker would have files of this machine shown to the agent, or run as the tests."""
    secret, root = tmp_path / "secret", tmp_path / "tasks"
    for folder in (secret, root / "task") if linked != "." else (secret,):
        for name in ("instruction.md", "task.toml", "solution/solve.sh", "environment/data", "tests/test.sh"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("")
    place = root / "task" / linked
    if linked == ".":
        root.mkdir()
        (root / "task").symlink_to(secret)
    else:
        (shutil.rmtree if place.is_dir() else os.unlink)(place)
        place.symlink_to(secret / linked)
    with pytest.raises(ConfigError, match=r"a link to .*secret"):
        read_folder(find_folders(root)[0])


def test_texts_of_a_folder_may_begin_with_a_byte_order_mark(tmp_path):
    task = tmp_path / "tasks" / "task"
    for name in ("instruction.md", "solution/solve.sh", "environment/data", "tests/test.sh"):
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text("\ufeffecho done", encoding="utf-8")
    found = read_folder(task)
    assert (found.instruction, found.solution) == ("echo done", "echo done")


def test_links_among_a_tasks_files_are_left_out(tmp_path):
    task, secret = tmp_path / "tasks" / "task", tmp_path / "secret"
    for name in ("instruction.md", "environment/data", "tests/test.sh"):
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text("")
    secret.mkdir()
    (secret / "key").write_text("s3cret")
    (task / "environment" / "file").symlink_to(secret / "key")
    (task / "environment" / "folder").symlink_to(secret)
    (task / "tests" / "folder").symlink_to(secret)
    found = read_folder(task)
    assert (set(found.files), set(found.tests)) == ({"data"}, {"test.sh"})


def test_the_folders_that_come_along_are_split_and_solved_by_their_solutions():
    config = {"folder": str(FOLDERS)}
    splits = {split: list(Terminal.tasks(split, "terminal", **config)) for split in ("train", "heldout")}
    assert [t.id for t in splits["train"]] == ["broken-backup", "csv-to-json", "release-link"]
    assert [t.id for t in splits["heldout"]] == ["word-count-heldout"]
    for task in splits["train"] + splits["heldout"]:
        env = Terminal(task, **config)
        messages = env.reset()
        assert "/app" not in messages[1]["content"]
        nothing = play(Terminal(task, **config), DONE)[-1]
        assert nothing.reward < 1, task.id
        *_, end = play(env, to_action(env.oracle(messages)), DONE)
        assert end.reward == 1.0, (task.id, end)


@pytest.mark.parametrize("level", list(FAMILIES))
def test_made_up_tasks_are_not_done_by_doing_nothing(level):
    for seed in range(4):
        assert play(make(seed, level=level), DONE)[-1].reward == 0.0


def test_equal_seeds_make_equal_tasks():
    for level in FAMILIES:
        assert make_task(level, random.Random(5)) == make_task(level, random.Random(5))


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"command_timeout_s: must be from 0.1 to 600, got 0"):
        make(command_timeout_s=0)
    with pytest.raises(ValueError, match="max_turns: must be an integer from 1 to 256"):
        make(max_turns=0)


@pytest.mark.slow
def test_it_passes_the_environment_check():
    assert [f for f in check_env("terminal", num_tasks=4) if not f.ok] == []
