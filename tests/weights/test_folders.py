"""What a killed engine leaves in shared memory is removed by the name that its own temporary folder knows."""

import uuid
from pathlib import Path

from asyncrl.weights.folders import clear_shared_memory, remove_weights


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
