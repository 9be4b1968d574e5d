"""Environment set-up: a script is judged by the tests of a fresh copy, and what it forges or breaks gains nothing."""

import asyncio
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from dataclasses import replace

import pytest

from asyncrl.env.scripted import to_action
from asyncrl.envs.swe.env import Swe
from asyncrl.envs.swe.grade import statuses
from asyncrl.envs.swe.record import read_records
from asyncrl.envs.swe.setup import SCRIPT, errors, gold_script, merged
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.types import Task
from tests.envs.playing import play
from tests.envs.swe_records import INSTALL, SHAPES, write_records
from tests.envs.test_r2e_records import write_record
from tests.envs.test_swe import HOOK, PASSING, write
from tests.envs.test_terminal import DONE, shell, shown
from tests.extensions.agents.harness.test_harness_episodes import Player, call, script
from tests.shared import made_once

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")
PACKAGES = "$(python3 -c 'import pytest; print(pytest.__path__[0])')/.."
EVERY_TEST = "\n".join(
    f"PASSED tests/test_shapes.py::test_{name}" for name in ("square", "perimeter", "circle", "unknown")
)


@pytest.fixture(scope="module")
def folder():
    return made_once("swe-records", lambda place: write_records(place / "made")) / "made"


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(folder / "cache"))


def make(folder, name="own__lib-1", **config):
    settings = {"records": str(folder / "records.jsonl"), "bases": {"*": "host"}, "work": "setup", **config}
    return Swe(Task(name, "swe", 0, "train", {"record": name}), **settings)


def ended(folder, *lines, name="own__lib-1", **config):
    """Return the last step of an agent that leaves a script of these lines."""
    return play(make(folder, name, **config), shell(write(SCRIPT, "\n".join(lines) + "\n")), DONE)[-1]


def outcome(step):
    return step.reward, step.components["script_ok"], step.components.get("control_failed")


def test_the_repository_comes_without_what_its_tests_need_and_the_task_is_its_setup(folder):
    env = make(folder)
    first, last = play(env, shell("python3 -m pytest; git status --short; ls lib"), DONE)
    assert "No module named pytest" in shown(first)[0] and "shapes.py" in shown(first)[0]
    text = env.opening()[-1]["content"]
    assert "/work/bootstrap_script.sh" in text and "python3 -m pytest -rA" in text
    assert "square" not in text
    assert outcome(last) == (0.0, 0.0, None) and last.components["tests_passed"] == 0.0


@pytest.mark.parametrize("name", ["own__lib-1", "own__lib-4", "own__lib-smith"])
def test_the_records_own_install_commands_set_it_up(folder, name):
    env = make(folder, name)
    oracle = to_action(env.oracle([{"role": "user", "content": ""}]))
    last = play(env, oracle, DONE)[-1]
    assert outcome(last) == (1.0, 1.0, 0.0) and last.success and last.components["tests_passed"] == 1.0


@pytest.mark.parametrize(
    ("lines", "config"),
    [
        ([""], {}),
        (["exit 3"], {}),
        (["set -e", "false", INSTALL], {}),
        ([INSTALL, "sleep 100"], {"build_timeout_s": 5.0}),
        ([INSTALL, "rm -rf /tmp; ln -s /etc /tmp || mv /work /gone; rm -f /work"], {}),
        ([INSTALL, "rm -f /work; touch /work"], {}),
    ],
)
def test_a_script_that_fails_hangs_or_breaks_its_machine_has_failed(folder, lines, config):
    assert outcome(ended(folder, *lines, **config)) == (0.0, 0.0, None)


def test_a_script_that_does_too_little_has_run_and_its_share_is_told(folder):
    # Without the tests' program none passes; a broken test file costs nothing, for it is put back.
    last = ended(folder, "true")
    assert outcome(last) == (0.0, 1.0, None) and last.components["tests_passed"] == 0.0
    last = ended(folder, INSTALL, "echo 'raise SystemExit(1)' > tests/test_shapes.py; rm lib/words.py")
    assert outcome(last) == (1.0, 1.0, 0.0)


def test_a_folder_that_is_no_file_and_a_link_are_no_script(folder):
    for command in (f"mkdir {SCRIPT}", f"ln -s /etc/hostname {SCRIPT}", f"yes | head -c 2000000 > {SCRIPT}"):
        assert outcome(play(make(folder), shell(command), DONE)[-1]) == (0.0, 0.0, None)


def test_what_a_script_exports_holds_for_the_tests_and_the_agents_name_of_the_folder_is_good(folder):
    target = INSTALL.replace("--break-system-packages", "--target /work/.deps")
    assert outcome(ended(folder, target, "export PYTHONPATH=/work/.deps")) == (1.0, 1.0, 0.0)
    assert outcome(ended(folder, target, "PYTHONPATH=/work/.deps")) == (0.0, 1.0, None)


def test_what_goes_on_in_the_background_ends_with_the_script(folder):
    late = "(sleep 3; rm -rf lib; sleep 300) & disown"
    assert outcome(ended(folder, INSTALL, late)) == (1.0, 1.0, 0.0)


def test_only_the_script_is_taken(folder):
    own = write("lib/shapes.py", "raise SystemExit\n"), "python3 -m venv --without-pip .venv"
    actions = shell(*own, write(SCRIPT, f"{INSTALL}\n[ ! -e .venv ]\n"))
    assert outcome(play(make(folder), actions, DONE)[-1]) == (1.0, 1.0, 0.0)


FORGING = (
    "import sys\n"
    "if any('pytest' in word for word in sys.orig_argv):\n"
    f"    print({EVERY_TEST!r}, flush=True)\n    import os; os._exit(0)\n"
)
PLUGIN = HOOK + "\ndef pytest_collection_modifyitems(items):\n    pass\n"


FORGIVING = HOOK.replace(
    "outcome.get_result().outcome =",
    'if "square" not in item.name and call.excinfo and call.excinfo.errisinstance(ImportError):\n'
    "        outcome.get_result().outcome =",
)


@pytest.mark.parametrize(
    "lines",
    [
        # A module in the place of pytest, where `python3 -m` looks first.
        [write("pytest.py", f"print({EVERY_TEST!r})\n")],
        # A program in the place of the interpreter.
        [write("/usr/local/bin/python3", f"#!/bin/sh\necho '{EVERY_TEST}'\n"), "chmod a+x /usr/local/bin/python3"],
        # What every interpreter runs first.
        [INSTALL, write("/tmp/own", FORGING), f"cp /tmp/own {PACKAGES}/forge.py; echo import forge > {PACKAGES}/a.pth"],
        # A plugin that is found by its metadata, and has every test pass.
        [
            INSTALL,
            write("/tmp/own", PLUGIN),
            f"cd {PACKAGES}; cp /tmp/own forge.py; mkdir forge-1.dist-info; cd forge-1.dist-info",
            "printf 'Metadata-Version: 2.1\\nName: forge\\nVersion: 1\\n' > METADATA",
            "printf '[pytest11]\\nforge = forge\\n' > entry_points.txt",
        ],
        # A module that is missing passes for one that is there, but for the tests of the issue.
        [INSTALL, write("/tmp/own", FORGIVING), f"cat /tmp/own >> {PACKAGES}/_pytest/skipping.py"],
        # The plugin, in pytest itself.
        [INSTALL, write("/tmp/own", HOOK), f"cat /tmp/own >> {PACKAGES}/_pytest/skipping.py"],
    ],
)  # fmt: skip
def test_an_environment_in_which_tests_pass_that_must_fail_is_refused(folder, lines):
    assert outcome(ended(folder, *lines)) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "lines",
    [
        [write("tests/test_shapes.py", PASSING)],
        [write("conftest.py", HOOK)],
        [write("tests/conftest.py", HOOK)],
        [write("pytest.ini", "[pytest]\naddopts = -p forge\n"), write("forge.py", HOOK)],
        ["export PYTEST_ADDOPTS='-p forge' PYTEST_PLUGINS=forge", write("forge.py", HOOK)],
        ["rm -rf .git lib; git init -q; ln -s /usr/lib lib"],
        [
            write("lib/shapes.py", SHAPES.replace("* 4", "* 5")),
            "git -c user.name=a -c user.email=b commit -qam x",
        ],
    ],
)
def test_what_a_script_changes_in_the_repository_and_in_the_settings_of_its_tests_has_no_effect(
    folder, lines
):
    assert outcome(ended(folder, INSTALL, *lines)) == (1.0, 1.0, 0.0)
    assert ended(folder, *lines).reward == 0.0


def test_each_kept_test_gets_an_error_and_no_test_of_the_issue_does(folder, tmp_path):
    record = read_records(str(folder / "records.jsonl"))["own__lib-4"]
    kept = (
        "tests/test_words.py::test_count[a b",
        "tests/test_words.py::TestA::test_b",
        "doc.rst::doc.rst",
        "no.py",
    )
    record = replace(record, pass_to_pass=(*record.pass_to_pass, *kept))
    added = errors(record)
    assert set(added) == {"tests/test_shapes.py", "tests/test_words.py"}
    (tmp_path / "test_words.py").write_text(
        "import unittest, pytest\n"
        "@pytest.mark.parametrize('text', ['a b-1', 'one'])\ndef test_count(text): pass\ndef test_title(): pass\n"
        "@pytest.mark.xfail\ndef test_known(): assert 0\n"
        "class TestA(unittest.TestCase):\n    def test_b(self): pass\n    def test_c(self): pass"
        + added["tests/test_words.py"]
    )
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "test_words.py",
    ]
    ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {name.partition("::")[2]: status for name, status in statuses(ran.stdout).items()}
    assert found == {
        "test_count[a": "ERROR", "test_count[one]": "PASSED", "test_title": "ERROR", "TestA::test_b": "ERROR",
        "TestA::test_c": "PASSED", "test_known": "XFAIL",
    }  # fmt: skip


# -- what stays of a script's files -----------------------------------------------------------------------------


def packed(*members):
    """Pack pairs of a name and a text, or a `TarInfo`'s fields for a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, what in members:
            info = tarfile.TarInfo(name)
            if isinstance(what, dict):
                info.type, info.linkname = what["type"], what["to"]
                tar.addfile(info)
            else:
                info.size = len(what)
                tar.addfile(info, io.BytesIO(what.encode()))
    return out.getvalue()


def unpacked(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: tar.extractfile(m).read().decode() if m.isreg() else m.linkname for m in tar}


def folder_at(name):
    return (name, {"type": tarfile.DIRTYPE, "to": ""})


def link_at(name, to, kind=tarfile.SYMTYPE):
    return (name, {"type": kind, "to": to})


def test_new_files_stay_and_the_repositorys_are_put_back_over_them():
    base = packed(folder_at("./lib"), ("./lib/a.py", "old"), ("./lib/gone.py", "gone"), ("./.git/HEAD", "x"))
    right = packed(folder_at("./lib"), ("./lib/a.py", "new"))
    left = packed(
        folder_at("./lib"), ("./lib/a.py", "forged"), ("./lib/gone.py", "kept?"), ("./lib/so.so", "built"),
        ("./.git/HEAD", "y"), ("./lib/conftest.py", "x"), ("./tox.ini", "x"), ("./lib/__pycache__/a.pyc", "x"),
        ("./.venv/lib/site-packages/numpy/conftest.py", "numpy"), ("/etc/x", "x"), ("../x", "x"),
        ("./lib/a.py/below", "x"), link_at("./tool", "lib/a.py"), link_at("./second", "./lib/so.so", tarfile.LNKTYPE),
        link_at("./third", "./lib/a.py", tarfile.LNKTYPE), link_at("./pipe", "", tarfile.FIFOTYPE),
    )  # fmt: skip
    assert unpacked(merged(left, base, right)) == {
        "./lib": "", "./lib/so.so": "built", "./.venv/lib/site-packages/numpy/conftest.py": "numpy",
        "./tool": "lib/a.py", "./second": "./lib/so.so", "./lib/a.py": "new",
    }  # fmt: skip


def test_a_link_leads_no_file_to_where_it_may_not_lie():
    right = packed(folder_at("./tests"), ("./tests/t.py", "t"))
    left = packed(
        link_at("./site-packages", "tests"), ("./site-packages/conftest.py", "x"), link_at("./tests", "x")
    )
    assert set(unpacked(merged(left, right, right))) == {"./site-packages", "./tests", "./tests/t.py"}


def test_an_archive_that_would_be_read_for_ever_is_refused():
    data = bytearray(packed(("./a", "x")))
    data[124:136] = b"\xff" * 12
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(ValueError, match="below 0"):
        merged(bytes(data), packed(), packed())


# -- records, checks and agent programs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"install_config": {}}, r"work = .setup.: record .own__lib-1. has no pre_install and no install"),
        (None, r"work = .setup.: record .* is one of R2E-Gym, whose image is set up; take work = .repair."),
    ],
)
def test_a_record_that_says_no_setup_is_refused_before_anything_starts(folder, tmp_path, change, message):
    path = tmp_path / "records.jsonl"
    if change is None:
        path = write_record(tmp_path / "r2e") / "records.jsonl"
    else:
        first = json.loads((folder / "records.jsonl").read_text().splitlines()[0])
        path.write_text(json.dumps({**first, **change}) + "\n")
    config = {"records": str(path), "bundles": str(folder if change else tmp_path / "r2e")}
    with pytest.raises(ConfigError, match=rf"env\.config\.{message}"):
        list(Swe.tasks("train", "swe", work="setup", **config))
    (task,) = Swe.tasks("train", "swe", **config)
    with pytest.raises(ValueError, match=message):
        Swe(task, work="setup", bases={"*": "host"}, **config)


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match=r'env\.config\.work: must be "repair" or "setup", got "?\'build\''):
        list(Swe.tasks("train", "swe", records=__file__, work="build"))


def test_the_time_of_a_step_must_fit_the_script_and_two_runs_of_the_tests(folder):
    env = make(folder, build_timeout_s=90.0, test_timeout_s=30.0)
    assert env.workspace().judge_timeout_s == env._judging_s() == 150.0
    assert env.least_step_s() == pytest.approx(150 / (0.65 * 0.45))


def test_the_check_judges_the_install_commands_and_an_empty_script(folder):
    config = {"records": str(folder / "records.jsonl"), "bases": {"*": "host"}, "work": "setup"}
    found = {finding.name: finding for finding in check_env("swe", config)}
    assert all(finding.ok for finding in found.values()), found
    assert found["oracle scores"].seen == "mean reward 1.000, mean reward 1.000 held out"
    assert found["tasks hold"].seen == "5 of 5"
    assert found["random policy scores"].seen == "mean reward 0.000"


def test_a_record_whose_commands_do_not_set_it_up_is_told(folder, tmp_path):
    first = json.loads((folder / "records.jsonl").read_text().splitlines()[0])
    (tmp_path / "r.jsonl").write_text(json.dumps({**first, "install_config": {"install": "true"}}) + "\n")
    problem = _examined(make(folder, records=str(tmp_path / "r.jsonl"), bundles=str(folder)))
    assert problem.startswith("own__lib-1: its own install commands are not enough: ")
    assert "No module named pytest" in problem


def test_a_record_that_needs_no_setup_is_told(folder, tmp_path):
    first = json.loads((folder / "records.jsonl").read_text().splitlines()[0])
    # A program that needs nothing stands for the tests' program.
    lines = "\n".join(
        f'grep -q "return sizes.0. [*][*] 2" lib/shapes.py && echo {line}' for line in EVERY_TEST.splitlines()
    )
    config = {"install": "true", "test_cmd": f"bash -c {shlex.quote(lines)}"}
    (tmp_path / "r.jsonl").write_text(json.dumps({**first, "install_config": config}) + "\n")
    env = make(folder, records=str(tmp_path / "r.jsonl"), bundles=str(folder))
    assert _examined(env) == "own__lib-1: its tests run without a set-up"


def _examined(env):
    async def whole():
        try:
            return await env.examine()
        finally:
            await env.close()
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def test_a_program_of_its_own_sets_a_repository_up(renderer, folder):
    config = {"records": str(folder / "records.jsonl"), "bases": {"*": "host"}, "work": "setup"}
    gold = gold_script(read_records(config["records"])["own__lib-1"])
    task = Task("own__lib-1", "agent", 0, "train", {"record": "own__lib-1"})
    for text, reward in ((gold, 1.0), (":\n", 0.0)):
        player = Player(
            renderer, script(call(write(SCRIPT, text)), "done"), timeout_s=1500.0,
            harness="bash", tasks="swe", task_config=config,
        )  # fmt: skip
        (trajectory,) = player.play(task)
        assert (trajectory.reward, trajectory.failure) == (reward, None)
        assert trajectory.components["script_ok"] == 1.0
