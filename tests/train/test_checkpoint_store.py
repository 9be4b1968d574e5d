"""A store holds whole checkpoints: what was not stored to its end does not count, and a lost folder comes back."""

import json

import pytest

from asyncrl.run.checkpoints import checkpoint_path, complete_checkpoints
from asyncrl.train.checkpoint_store import CheckpointStore


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    return CheckpointStore(
        f"file://{tmp_path}/store" if request.param == "file" else f"memory://{tmp_path.name}"
    )


def write(folder, version):
    """Make the files of a checkpoint, as far as a store looks at them."""
    path = checkpoint_path(folder, version)
    (path / "training_state").mkdir(parents=True)
    listed = {}
    for name in ("model.safetensors", "training_state/training.json"):
        (path / name).write_text(f"{name} of {version}")
        listed[name] = [(path / name).stat().st_size, ""]
    (path / "complete.json").write_text(json.dumps(listed))
    return path


def test_a_checkpoint_comes_back_as_it_was_and_only_the_newest_are_kept(store, tmp_path):
    for version in (2, 4, 6):
        store.put(write(tmp_path / "run", version), version, keep=2)
    assert store.versions() == [6, 4]
    store.fetch(tmp_path / "other", at_most=5)
    (found,) = complete_checkpoints(tmp_path / "other")
    assert found == (4, checkpoint_path(tmp_path / "other", 4))
    for file in ("model.safetensors", "training_state/training.json", "complete.json"):
        assert (found[1] / file).read_bytes() == (checkpoint_path(tmp_path / "run", 4) / file).read_bytes()


def test_a_folder_that_is_as_new_as_the_store_keeps_its_own(store, tmp_path):
    path = write(tmp_path, 4)
    store.put(path, 4, keep=2)
    (path / "model.safetensors").write_text("its own")
    store.fetch(tmp_path, at_most=9)
    assert (path / "model.safetensors").read_text() == "its own"


def test_what_was_not_stored_to_its_end_does_not_count(store, tmp_path, monkeypatch):
    store.put(write(tmp_path, 2), 2, keep=2)

    def cut(local, remote, **_):
        if remote.endswith("training.json"):
            raise ConnectionResetError("the connection was cut")

    monkeypatch.setattr(store._files, "put_file", cut)
    with pytest.raises(ConnectionResetError):
        store.put(write(tmp_path, 4), 4, keep=2)
    assert store.versions() == [2]


def test_a_store_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="nowhere"):
        CheckpointStore("nowhere://bucket")
