"""What a recorded run says of its episodes and its trainer."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config import parse_config
from asyncrl.extensions.simulation.calibrate import block_tokens, recorded
from asyncrl.kv_blocks import short_blocks

PROMPT = [1, 2, 3, 4]
CONFIG = parse_config({"model": {"path": "sft"}, "env": {"name": "gridworld"}, "rollout": {"group_size": 2}})


def row(step, group, sampled):
    return {
        "step": step,
        "group": group,
        "version_admitted": step - 1,
        "token_ids": PROMPT + sampled,
        "turn_start": [4],
        "turn_end": [4 + len(sampled)],
        "env_s": 0.5,
    }


@pytest.fixture
def run(tmp_path):
    """Four steps of one group of two episodes, which have their prompt and up to two sampled tokens in common."""
    rows = [
        [row(1, "a", [5, 6, 7]), row(1, "a", [5, 6, 8])],
        [row(2, "b", [5, 6]), row(2, "b", [7, 6])],
        [row(3, "c", [5]), row(3, "c", [6])],
        [row(4, "d", [5, 6, 7]), row(4, "d", [5, 6, 7])],
    ]
    (tmp_path / "trajectories").mkdir()
    for number, one in enumerate(rows):
        pq.write_table(pa.Table.from_pylist(one), tmp_path / "trajectories" / f"{number}.parquet")
    return tmp_path


def steps(*train_s):
    return [
        {"step": number, "time/train_s": seconds, "batch/groups": 1}
        for number, seconds in enumerate(train_s, 1)
    ]


def test_a_trainer_that_computes_shared_prefixes_once_is_told_by_its_times(run):
    tokens, workload = recorded(run, CONFIG, steps(9.0, 0.8, 0.6, 0.7))
    assert tokens == {1: 8, 2: 8, 3: 6, 4: 7}
    assert [[e.trained_tokens for e in group] for group in workload.groups] == [
        [7, 1],
        [6, 2],
        [5, 1],
        [7, 0],
    ]


def test_a_trainer_that_computes_every_row_is_told_by_its_times(run):
    tokens, workload = recorded(run, CONFIG, steps(9.0, 1.2, 1.0, 1.4))
    assert tokens == {1: 14, 2: 12, 3: 10, 4: 14}
    assert {e.trained_tokens for group in workload.groups for e in group} == {None}
    assert workload.progress == [0, 2, 4, 6], "episodes that the policies were trained on"
    assert workload.groups[0][0].turns[0].tool_s == 0.5


def test_the_block_of_the_kv_cache_is_that_of_the_engine():
    def config(*words, **engine):
        return parse_config(
            {
                "model": {"path": "sft"},
                "env": {"name": "gridworld"},
                "engine": {"extra_args": list(words), **engine},
            }
        )

    assert block_tokens(config("--block-size", "32"), on_gpus=False) == 32
    assert block_tokens(config("--block-size=64"), on_gpus=True) == 64
    assert (block_tokens(config(), on_gpus=False), block_tokens(config(), on_gpus=True)) == (128, 16)
    assert block_tokens(config(max_model_len=256), on_gpus=False) == short_blocks(256) in (16, 32)
