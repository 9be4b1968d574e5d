"""What a killed engine leaves in shared memory is removed by the name that its own temporary folder knows."""

import json
import platform
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from asyncrl.scratch import clear_shared_memory
from asyncrl.weights.folders import claim_weights, remove_deserted, remove_weights


def test_only_the_segments_of_the_engine_that_is_gone_are_removed(tmp_path):
    gone, running = (f"vllm_dist_{uuid.uuid4().hex}" for _ in range(2))
    (tmp_path / gone).touch()
    segments = {name: Path(f"/dev/shm/{name}-tp:0-[0-1]-cpushm_0") for name in (gone, running)}
    try:
        for segment in segments.values():
            segment.touch()
        clear_shared_memory(tmp_path)
        assert not segments[gone].exists()
        assert segments[running].exists()
    finally:
        segments[running].unlink()


def test_what_killed_engines_have_left_goes_with_the_folder_of_weights(tmp_path):
    name = f"vllm_dist_{uuid.uuid4().hex}"
    scratch = tmp_path / "weights" / "policy-other" / "rpc-17-ab"
    scratch.mkdir(parents=True)
    (scratch / name).touch()
    segment = Path(f"/dev/shm/{name}-tp:0-[0-1]-cpushm_1")
    segment.touch()
    remove_weights(tmp_path / "weights")
    assert not segment.exists()
    assert not (tmp_path / "weights").exists()
    remove_weights(tmp_path / "weights")


CLAIM = """
import sys, time
from pathlib import Path
from asyncrl.weights.folders import claim_weights
held = claim_weights(Path(sys.argv[1]), Path("runs/killed"))
print("claimed", flush=True)
time.sleep(600)
"""


def folder_of_weights(parent, name):
    folder = parent / name
    folder.mkdir()
    (folder / "weights-00000001.safetensors").write_bytes(bytes(3 * 2**20))
    return folder


def test_the_weights_of_a_killed_run_are_removed_and_no_sooner(tmp_path):
    folder = folder_of_weights(tmp_path, "asyncrl-1234-killed")
    process = subprocess.Popen([sys.executable, "-c", CLAIM, str(folder)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "claimed\n"
        assert remove_deserted(tmp_path) == []
        process.send_signal(signal.SIGKILL)
    [line] = remove_deserted(tmp_path)
    assert line == (
        f"removed {folder} (3 MiB): weights that {Path('runs/killed').resolve()} left when it was killed"
    )
    assert not folder.exists()


def test_a_claim_holds_in_its_own_process_until_it_is_closed(tmp_path):
    folder = folder_of_weights(tmp_path, "asyncrl-1234-mine")
    held = claim_weights(folder, tmp_path / "run")
    assert remove_deserted(tmp_path) == []
    held.close()
    assert len(remove_deserted(tmp_path)) == 1


@pytest.mark.parametrize("owner", [None, "", "torn {", "[3]", json.dumps({"host": "another", "run": "/r"})])
def test_folders_that_nobody_claimed_or_another_machine_did_are_left_alone(tmp_path, owner):
    folder = folder_of_weights(tmp_path, "asyncrl-1234-other")
    if owner is not None:
        (folder / "owner.json").write_text(owner)
    assert remove_deserted(tmp_path) == []
    assert folder.exists()


def test_no_link_is_followed_and_no_scratch_folder_is_taken_for_weights(tmp_path):
    owner = json.dumps({"host": platform.node(), "run": "/r"})
    target = folder_of_weights(tmp_path, "precious")
    (target / "owner.json").write_text(owner)
    (tmp_path / "asyncrl-1234-link").symlink_to(target)
    scratch = folder_of_weights(tmp_path, "asyncrl-eval-killed")
    (scratch / ".owner").write_text(platform.node())
    assert remove_deserted(tmp_path) == []
    assert (target / "weights-00000001.safetensors").exists() and scratch.exists()
