"""No temporary folder outlives its process for long, however that ends."""

from __future__ import annotations

import ast
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl import scratch
from asyncrl.scratch import OWNER, keep, remove_deserted, scratch_folder

ROOT = Path(__file__).parents[1]

HOLDS = """
import sys, time
from pathlib import Path
from asyncrl.scratch import scratch_folder
with scratch_folder("held", Path(sys.argv[1])) as folder:
    (folder / "inside").mkdir()
    (folder / "inside" / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""
ELSEWHERE = {
    "asyncrl/extensions/env_adapters/textworld_games.py": "in the cache of games, beside the game",
    "asyncrl/extensions/packaged_models/folders.py": "in the cache of models, which may be on another disk",
    "asyncrl/machine.py": "a cache, which stays",
    "asyncrl/extensions/remote_sandboxes/cluster.py": "a file that is removed in the next statement",
    "asyncrl/extensions/lora/vllm_adapters.py": "in the folder of weights, which the launcher removes",
    "services/engine/service.py": "in the folder of weights, which the launcher removes",
}
"""Where else temporary folders and files with a name are made, and why there."""


@pytest.fixture
def holder(tmp_path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a folder of its own below `tmp_path`, and that folder."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_folder_is_gone_when_its_process_is_done_with_it(tmp_path):
    with scratch_folder("mine", tmp_path) as folder:
        assert folder.name.startswith("asyncrl-mine-")
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_so_it_is_when_the_process_is_interrupted_or_fails(error, tmp_path):
    with pytest.raises(error), scratch_folder("mine", tmp_path):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_process_that_was_killed_goes_with_the_next_one(holder, tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "_looked_through", set())
    process, left = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (left / "inside" / "file").exists()
    with scratch_folder("mine", tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_that_of_a_process_that_lives_stays_even_while_it_is_stopped(holder, tmp_path):
    process, held = holder
    process.send_signal(signal.SIGSTOP)
    remove_deserted(tmp_path)
    assert (held / "inside" / "file").exists()


def test_what_is_kept_for_somebody_to_read_stays(tmp_path):
    with scratch_folder("mine", tmp_path) as folder:
        (folder / "log").write_text("x")
        keep(folder)
    remove_deserted(tmp_path)
    assert (folder / "log").read_text() == "x"


def deserted(folder: Path, host: str) -> Path:
    folder.mkdir()
    (folder / OWNER).write_text(host)
    return folder


def test_another_machine_on_the_same_disk_keeps_its_own(tmp_path):
    theirs = deserted(tmp_path / "asyncrl-eval-theirs", "elsewhere")
    ours = deserted(tmp_path / "asyncrl-eval-ours", platform.node())
    remove_deserted(tmp_path)
    assert theirs.exists() and not ours.exists()


def test_a_folder_that_is_not_claimed_yet_stays(tmp_path):
    made = deserted(tmp_path / "asyncrl-eval-new", "")
    (tmp_path / "asyncrl-eval-newer").mkdir()
    remove_deserted(tmp_path)
    assert made.exists() and (tmp_path / "asyncrl-eval-newer").exists()


def test_no_link_is_followed_and_no_folder_of_another_user_is_touched(tmp_path):
    target = deserted(tmp_path / "precious", platform.node())
    (tmp_path / "asyncrl-eval-link").symlink_to(target)
    foreign = deserted(tmp_path / "asyncrl-eval-foreign", platform.node())
    if os.geteuid() == 0:
        os.chown(foreign, 54321, 54321)
    remove_deserted(tmp_path)
    assert target.exists() and (tmp_path / "asyncrl-eval-link").is_symlink()
    assert foreign.exists() == (os.geteuid() == 0)


def makes_temporary_files(tree: ast.AST) -> bool:
    """Whether a module makes temporary folders or files that have a name."""
    named = {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile"}
    return any(
        isinstance(node, ast.Attribute | ast.Name) and name_of(node) in named for node in ast.walk(tree)
    )


def name_of(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def test_all_temporary_folders_of_the_product_are_such():
    files = [path for top in ("asyncrl", "services", "envs") for path in (ROOT / top).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)) for path in files if makes_temporary_files(ast.parse(path.read_text()))
    }
    assert found - {"asyncrl/scratch.py"} == set(ELSEWHERE)
