"""Ranks are started together, and one that cannot start ends the others."""

import dataclasses

import pytest

from asyncrl.extensions.tinker import rank_keeper
from asyncrl.extensions.tinker.rank_keeper import RankKeeper, loaded_model, threads_each
from asyncrl.extensions.tinker.rank_process import RankOptions
from asyncrl.extensions.tinker.ranks import LostRankError
from tests.waiting import START_S

OPTIONS = RankOptions("", "float32", 16, 64, 2, 60.0, 1, 4)


def test_ranks_share_the_cpus_unless_they_have_gpus_or_are_told_their_threads(monkeypatch):
    monkeypatch.setattr(rank_keeper, "usable_cpus", lambda: 8)
    assert [threads_each(0, ranks) for ranks in (2, 3, 16)] == [4, 2, 1]
    assert threads_each(5, 2) == 5
    monkeypatch.setattr(rank_keeper, "found_gpus", lambda: ("0", "1"))
    assert threads_each(0, 2) == 0


def test_one_rank_starts_no_process(tiny_model):
    with loaded_model(dataclasses.replace(OPTIONS, model=tiny_model, size=1), START_S) as (base, keeper):
        assert keeper is None and base.context == 16


@pytest.mark.slow
def test_a_rank_that_cannot_start_is_named_and_the_others_end(tmp_path):
    options = dataclasses.replace(OPTIONS, model=str(tmp_path / "none"), folder=str(tmp_path), size=3)
    keeper = RankKeeper(options)
    with (
        pytest.raises(LostRankError, match=r"rank [12] has ended with exit code 1 at its start"),
        keeper.running(),
    ):
        keeper.join(START_S)
    assert all(process.poll() is not None for process in keeper.processes.values())


@pytest.mark.slow
def test_a_rank_that_takes_too_long_to_load_is_named(tiny_model, tmp_path):
    keeper = RankKeeper(dataclasses.replace(OPTIONS, model=tiny_model, folder=str(tmp_path)))
    said = r"rank 1 has not loaded the model within 0 s \(run.start_timeout_s\)"
    with pytest.raises(LostRankError, match=said), keeper.running():
        keeper.join(0.0)
