"""What a killed engine leaves in shared memory is removed by the name that its own temporary folder knows."""

import uuid
from pathlib import Path

from asyncrl.weights.folders import clear_shared_memory


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
