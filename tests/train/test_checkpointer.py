"""A checkpoint is one unit: whole or ignored, loadable on other ranks and stages, and nothing is lost on the way."""

import json
import random
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncrl.errors import InputError
from asyncrl.run.checkpoints import (
    checkpoint_path,
    complete_checkpoints,
    state_files,
    state_folder,
)
from asyncrl.train.checkpoint.checkpointer import Checkpointer, newest_usable
from asyncrl.train.engine.full_state import WholeTensors, gather_state, load_state
from tests.train.checkpoint_ranks import WAYS
from tests.train.one_step import make_engine, snapshot, step_once


def trained(model, stage=1, steps=2):
    engine = make_engine(model, stage)
    for _ in range(steps):
        step_once(engine)
    return engine


def worst(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def reference(tiny_model):
    """The state after two steps and the weights after a third."""
    engine = trained(tiny_model)
    state = gather_state(engine)
    step_once(engine)
    return state, snapshot(engine)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_gathered_state_continues_equally_under_any_zero_stage(tiny_model, reference, stage):
    state, expected = reference
    engine = make_engine(tiny_model, stage)
    load_state(engine, WholeTensors(state))
    step_once(engine)
    # Stages clip by norms that are added up in another order; the floats next to a norm's weight of 1 are 1.2e-7 away.
    assert worst(snapshot(engine), expected) < 2e-7


def test_a_state_without_the_moments_continues_differently(tiny_model, reference):
    state, expected = reference
    engine = make_engine(tiny_model, 1)
    load_state(engine, WholeTensors(state | {"adam_step": torch.tensor(0.0)}))
    step_once(engine)
    assert worst(snapshot(engine), expected) > 1e-5


def test_a_state_of_another_model_is_refused_by_parameter(tiny_model, reference):
    state, _ = reference
    wrong = {k: v for k, v in state.items() if k != "exp_avg/model.model.norm.weight"}
    with pytest.raises(InputError, match=r"exp_avg of model\.model\.norm\.weight is missing"):
        load_state(make_engine(tiny_model, 1), WholeTensors(wrong))
    cut = state | {"weight/model.model.norm.weight": torch.zeros(3)}
    with pytest.raises(InputError, match=r"has shape \(3,\), expected \(64,\)"):
        load_state(make_engine(tiny_model, 1), WholeTensors(cut))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_run_on_one_rank_resumes_on_two(tiny_model, two_ranks, tmp_path, stage):
    engine = trained(tiny_model, stage=1)
    saver = Checkpointer(tmp_path, engine, tiny_model)
    saver.save(2, {})
    saver.wait()
    step_once(engine)
    two_ranks.call("tests.train.one_step_resumed", tiny_model, str(tmp_path), str(stage))
    assert worst(torch.load(tmp_path / "weights.pt", weights_only=True), snapshot(engine)) < 1e-6


@pytest.fixture(scope="module")
def of_two_ranks(tiny_model, two_ranks, tmp_path_factory):
    """Checkpoints that two ranks wrote, a folder for each way, and in each what a third step gave."""
    folder = tmp_path_factory.mktemp("two-ranks")
    two_ranks.call("tests.train.checkpoint_ranks", tiny_model, str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_two_ranks_wrote_resumes_on_one_and_loads_as_a_model(tiny_model, of_two_ranks, way):
    version, path = newest_usable(of_two_ranks / way, at_most=9)
    assert version == 2
    assert len(state_files(path / "training_state")) == len(list(path.glob("model*.safetensors"))) == 2
    engine = make_engine(tiny_model, 1)
    assert Checkpointer(of_two_ranks / way, engine, tiny_model).load(path).extra == {"count": 3}
    loaded = AutoModelForCausalLM.from_pretrained(path).state_dict()
    for name, tensor in snapshot(engine).items():
        assert torch.equal(loaded[name], tensor), name
    step_once(engine)
    expected = load_file(of_two_ranks / way / "third.safetensors")
    assert worst(snapshot(engine), expected) < 1e-6


@pytest.mark.slow
def test_a_rank_that_cannot_write_its_part_costs_only_that_checkpoint(of_two_ranks):
    assert [(of_two_ranks / f"error-{rank}").read_text() for rank in range(2)] == [
        "CheckpointError: rank 1: OSError(28, 'No space left on device')",
        "OSError: [Errno 28] No space left on device",
    ]
    assert [version for version, _ in complete_checkpoints(of_two_ranks / WAYS[-1])] == [2]


def test_a_run_can_go_back_to_its_start_until_a_later_version_is_pinned(tiny_model, tmp_path):
    engine = make_engine(tiny_model, 1)
    saver = Checkpointer(tmp_path, engine, tiny_model, every=2, keep=1)
    start = snapshot(engine)
    saver.save_start({"count": 0})
    step_once(engine)
    first = snapshot(engine)
    step_once(engine)
    assert saver.go_back(0) == {"count": 0}
    assert all(torch.equal(snapshot(engine)[name], tensor) for name, tensor in start.items())
    step_once(engine)
    # The moments are those of a run that begins, too.
    assert worst(snapshot(engine), first) == 0
    for version in (2, 4, 6):
        saver.pinned = 2 if version > 2 else 0
        saver.save(version, {})
        saver.wait()
        kept = [found for found, _ in complete_checkpoints(tmp_path)]
        assert (kept, saver.versions()) == {2: ([2], [0]), 4: ([4, 2], [2, 0]), 6: ([6, 2], [2, 0])}[version]
    (checkpoint_path(tmp_path, 2) / "config.json").write_text("{}")
    before = snapshot(engine)
    assert saver.go_back(2) is None, "it is damaged"
    assert worst(snapshot(engine), before) == 0


def test_a_run_that_keeps_no_versions_has_none_to_go_back_to_and_none_is_left_at_its_end(
    tiny_model, tmp_path
):
    engine = make_engine(tiny_model, 1)
    without = Checkpointer(tmp_path / "without", engine, tiny_model)
    without.save_start({})
    assert without.versions() == []
    saver = Checkpointer(tmp_path / "with", engine, tiny_model, every=10)
    saver.save_start({})
    saver.wait()
    assert saver.versions() == [0]
    assert complete_checkpoints(tmp_path / "with") == [], "a crash starts anew instead"
    saver.finish(3, {})
    assert [path.name for path in (tmp_path / "with").iterdir()] == ["step-000003"]


def test_a_checkpoint_restores_weights_moments_extras_and_random_state(tiny_model, tmp_path):
    engine = trained(tiny_model)
    extra = {"auxiliary": {"ewma": torch.arange(3.0), "kl_coef": 0.25}, "lags": {0: 5, 1: 7}}
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    saver = Checkpointer(tmp_path, engine, tiny_model)
    assert saver.save(2, extra) >= 0
    saver.wait()
    drawn = (torch.rand(3), random.random(), np.random.rand())
    step_once(engine)
    expected = snapshot(engine)

    other = make_engine(tiny_model, 1)
    torch.manual_seed(0)
    restored = Checkpointer(tmp_path, other, tiny_model).load(checkpoint_path(tmp_path, 2))
    assert restored.version == 2
    assert torch.equal(restored.extra["auxiliary"].pop("ewma"), torch.arange(3.0))
    assert restored.extra == {"auxiliary": {"kl_coef": 0.25}, "lags": {0: 5, 1: 7}}
    assert torch.equal(torch.rand(3), drawn[0])
    assert (random.random(), np.random.rand()) == drawn[1:]
    step_once(other)
    assert worst(snapshot(other), expected) == 0


def test_training_on_while_a_checkpoint_is_written_does_not_change_it(tiny_model, tmp_path, monkeypatch):
    engine = trained(tiny_model)
    before = gather_state(engine)
    saver = Checkpointer(tmp_path, engine, tiny_model)
    saver.save(2, {})
    step_once(engine)
    saver.wait()
    other = make_engine(tiny_model, 1)
    Checkpointer(tmp_path, other, tiny_model).load(checkpoint_path(tmp_path, 2))
    assert worst(gather_state(other), before) == 0


def test_a_checkpoint_is_complete_only_when_what_belongs_to_its_steps_is_written(tiny_model, tmp_path):
    written = threading.Event()
    saver = Checkpointer(
        tmp_path, trained(tiny_model, steps=1), tiny_model, before_complete=lambda: written.wait(30)
    )
    saver.save(1, {})
    assert newest_usable(tmp_path, at_most=9) is None
    written.set()
    saver.wait()
    assert newest_usable(tmp_path, at_most=9) == (1, checkpoint_path(tmp_path, 1))


def test_a_checkpoint_whose_trajectories_cannot_be_written_is_none(tiny_model, tmp_path):
    def full():
        raise OSError(28, "No space left on device")

    saver = Checkpointer(tmp_path, trained(tiny_model, steps=1), tiny_model, before_complete=full)
    saver.save(1, {})
    with pytest.raises(OSError, match="No space left"):
        saver.wait()
    assert list(tmp_path.iterdir()) == []


def test_only_the_newest_checkpoints_are_kept_and_only_due_ones_made(tiny_model, tmp_path):
    engine = trained(tiny_model, steps=1)
    saver = Checkpointer(tmp_path, engine, tiny_model, every=2, keep=2)
    for version in range(1, 9):
        if saver.due(version):
            saver.save(version, {})
    saver.wait()
    assert [version for version, _ in complete_checkpoints(tmp_path)] == [8, 6]
    assert {p.name for p in tmp_path.iterdir()} == {"step-000006", "step-000008"}


@pytest.mark.parametrize("damage", ["torn", "flipped", "unmarked"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tiny_model, tmp_path, damage):
    saver = Checkpointer(tmp_path, trained(tiny_model, steps=1), tiny_model)
    for version in (1, 2):
        saver.save(version, {})
    saver.wait()
    file = state_folder(checkpoint_path(tmp_path, 2)) / "training.safetensors"
    data = file.read_bytes()
    if damage == "torn":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        (checkpoint_path(tmp_path, 2) / "complete.json").unlink()
    assert newest_usable(tmp_path, at_most=9) == (1, checkpoint_path(tmp_path, 1))
    assert newest_usable(tmp_path, at_most=0) is None


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_one_and_says_so(
    tiny_model, tmp_path, monkeypatch
):
    engine = trained(tiny_model, steps=1)
    saver = Checkpointer(tmp_path, engine, tiny_model)
    saver.save(1, {})
    saver.wait()

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("asyncrl.train.checkpoint.checkpointer.save_file", full)
    saver.save(2, {})
    with pytest.raises(OSError, match="No space left"):
        saver.wait()
    assert {p.name for p in tmp_path.iterdir()} == {"step-000001"}
    assert saver.error == "OSError: [Errno 28] No space left on device"
    monkeypatch.undo()
    saver.save(3, {})
    saver.wait()
    assert saver.error == ""
    assert newest_usable(tmp_path, 9)[0] == 3


def test_a_checkpoint_replaces_what_a_crash_left_in_its_place(tiny_model, tmp_path):
    target = checkpoint_path(tmp_path, 1)
    for folder in (target, target.with_name(f"{target.name}.partial")):
        folder.mkdir()
        (folder / "stale").touch()
    saver = Checkpointer(tmp_path, make_engine(tiny_model), tiny_model)
    saver.save(1, {})
    saver.wait()
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert not (target / "stale").exists()


def test_the_marker_lists_every_file(tiny_model, tmp_path):
    saver = Checkpointer(tmp_path, trained(tiny_model, steps=1), tiny_model)
    saver.save(1, {})
    saver.wait()
    folder = checkpoint_path(tmp_path, 1)
    listed = json.loads((folder / "complete.json").read_text())
    assert set(listed) == {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {
        "complete.json"
    }


def test_only_the_policys_weights_lie_where_vllm_looks_for_weights(tiny_model, tmp_path):
    saver = Checkpointer(tmp_path, trained(tiny_model, steps=1), tiny_model)
    saver.save(1, {})
    saver.wait()
    path = checkpoint_path(tmp_path, 1)
    assert [p.name for p in path.glob("*.safetensors")] == ["model.safetensors"]


def test_a_second_engine_is_saved_and_restored_with_the_first(tiny_model, tmp_path):
    policy, critic = trained(tiny_model, steps=1), trained(tiny_model, steps=2)
    saver = Checkpointer(tmp_path, policy, tiny_model, others={"critic": critic})
    saver.save(1, {})
    saver.wait()
    again = make_engine(tiny_model, 1), make_engine(tiny_model, 1)
    Checkpointer(tmp_path, again[0], tiny_model, others={"critic": again[1]}).load(
        checkpoint_path(tmp_path, 1)
    )
    assert worst(gather_state(again[0]), gather_state(policy)) == 0
    assert worst(gather_state(again[1]), gather_state(critic)) == 0
    assert worst(gather_state(policy), gather_state(critic)) > 0
