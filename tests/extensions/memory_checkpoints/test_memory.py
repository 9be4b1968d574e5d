"""A checkpoint in memory is whole or ignored, and a part that is lost comes from the next machine."""

import json
import shutil

import pytest
import torch
from safetensors import SafetensorError

from asyncrl.extensions.memory_checkpoints.memory import MemoryCheckpoints
from asyncrl.run.checkpoints import MARKER, VALUES, state_file
from asyncrl.train.checkpoint.writers import Writers
from asyncrl.weights.chunks import file_checksum
from tests.extensions.memory_checkpoints.memory_ranks import WAYS


def memory(folder, every=1, stage=0):
    return MemoryCheckpoints(folder, Writers(0, 1), every, stage=stage)


def write(one, version, before_complete=lambda: None, size=4):
    one.write(version, {"a": torch.full((size,), float(version))}, {"version": version}, before_complete)


def steps(folder):
    return sorted(path.name for path in folder.iterdir())


def test_versions_are_due_every_so_many_steps(tmp_path):
    assert [version for version in range(7) if memory(tmp_path, every=3).due(version)] == [0, 3, 6]
    assert not memory(tmp_path, every=0).due(3)


def test_the_newest_version_up_to_the_ledgers_is_found_and_older_ones_are_removed(tmp_path):
    kept = memory(tmp_path)
    write(kept, 4)
    write(kept, 5)
    assert steps(tmp_path) == ["step-000005"]
    assert (kept.newest(5), kept.newest(9), kept.newest(4)) == (5, 5, None)
    assert kept.bring(5)
    kept.forget(but=5)
    assert steps(tmp_path) == ["step-000005"]
    kept.forget()
    assert steps(tmp_path) == [] and kept.newest(5) is None


def test_a_version_counts_only_once_it_is_committed(tmp_path):
    def not_committed():
        assert kept.newest(9) == 4
        raise OSError("the buffer is gone")

    kept = memory(tmp_path)
    write(kept, 4)
    with pytest.raises(OSError, match="the buffer is gone"):
        write(kept, 5, not_committed)
    assert steps(tmp_path) == ["step-000004"] and kept.bring(4)


@pytest.mark.parametrize("file", [MARKER, VALUES])
def test_what_a_killed_process_wrote_in_part_is_ignored(tmp_path, file):
    kept = memory(tmp_path)
    write(kept, 5)
    (tmp_path / "step-000005" / file).unlink()
    assert kept.newest(9) is None


@pytest.mark.parametrize("file", ["training.safetensors", VALUES])
def test_damaged_parts_are_refused_by_their_checksums(tmp_path, file, caplog):
    kept = memory(tmp_path)
    write(kept, 5)
    path = tmp_path / "step-000005" / file
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert not kept.bring(5)
    assert "memory checkpoint of version 5: the parts of ranks [0] are lost" in caplog.text


def test_what_another_zero_stage_wrote_is_not_read(tmp_path):
    write(memory(tmp_path, stage=1), 5)
    assert memory(tmp_path, stage=1).newest(9) == 5
    assert memory(tmp_path, stage=2).newest(9) is None


def written_by_two_machines(folder):
    """What the machine of rank 0 has: its part, a copy of the other machine's, and the list of both."""
    kept = memory(folder, stage=1)
    write(kept, 5)
    path = folder / "step-000005"
    values = json.loads((path / VALUES).read_text())
    values["layout"] |= {"ranks": 2, "machines": 2}
    (path / VALUES).write_text(json.dumps(values))
    (path / "copies").mkdir()
    own, copy = path / state_file(0), path / "copies" / state_file(1)
    shutil.copyfile(own, copy)
    listed = {
        name: [file.stat().st_size, file_checksum(file)]
        for name, file in ((VALUES, path / VALUES), (own.name, own), (copy.name, copy))
    }
    (path / MARKER).write_text(json.dumps(listed))
    return kept, path


def test_fewer_ranks_read_the_parts_of_all_from_a_machine_and_its_copies(tmp_path):
    kept, path = written_by_two_machines(tmp_path)
    assert kept.newest(9) == 5 and kept.brought_together(5)
    assert kept.bring(5)
    assert (path / state_file(1)).is_file() and not (path / "copies" / state_file(1)).exists()
    assert kept.bring(5), "a restart in between finds them again"


@pytest.mark.parametrize("file", [VALUES, state_file(0), f"copies/{state_file(1)}"])
def test_fewer_ranks_read_nothing_where_a_part_is_lost(tmp_path, file, caplog):
    kept, path = written_by_two_machines(tmp_path)
    (path / file).write_bytes((path / file).read_bytes() + b" ")
    assert not kept.bring(5)
    assert f"memory checkpoint of version 5: lost: {file.removeprefix('copies/')}" in caplog.text


def test_a_full_memory_costs_the_version_that_did_not_fit(small_disk):
    kept = memory(small_disk / "memory")
    write(kept, 4)
    with pytest.raises((OSError, SafetensorError)):
        write(kept, 5, size=2**22)
    assert steps(small_disk / "memory") == ["step-000004"] and kept.bring(4)


@pytest.fixture(scope="module")
def of_two_ranks(tiny_model, two_ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    two_ranks.call("tests.extensions.memory_checkpoints.memory_ranks", tiny_model, str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_ranks_resume_from_memory_and_train_on_bit_by_bit(of_two_ranks, way):
    """What is compared is in `memory_ranks`; here, which parts came from another machine."""
    found = json.loads((of_two_ranks / f"{way}.json").read_text())
    assert found == {"apart": ["own", "damaged 0", "lost 1"]}.get(way.partition("-")[2], ["own"])
