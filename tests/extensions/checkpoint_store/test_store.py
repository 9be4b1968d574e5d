"""A store holds whole checkpoints: what was not stored to its end does not count, and a lost folder comes back."""

import json

import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.checkpoint_store.store import CheckpointStore
from asyncrl.run.checkpoints import checkpoint_path, complete_checkpoints
from asyncrl.train.checkpoint.checkpointer import Checkpointer, check_whole, newest_usable
from asyncrl.train.checkpoint.writers import CheckpointError
from tests.train.one_step import make_engine, step_once


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


@pytest.mark.parametrize(
    "marker",
    [
        "[]", "1", "null", "{", '{"a": 1}', '{"a": [1]}', '{"a": ["x", ""]}', '{"../../evil": [1, ""]}',
        '{"/etc/evil": [1, ""]}', '{"training_state/../../evil": [1, ""]}', '{"": [1, ""]}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_marker_that_is_none_or_names_files_elsewhere_is_refused(tmp_path, marker):
    path = write(tmp_path, 4)
    (path / "complete.json").write_text(marker)
    with pytest.raises(InputError, match=r"complete\.json (is damaged|names a file elsewhere)"):
        check_whole(path)
    assert newest_usable(tmp_path, at_most=9) is None


def test_a_store_whose_marker_names_files_elsewhere_writes_none(tmp_path):
    store = CheckpointStore(f"file://{tmp_path}/store")
    store.put(write(tmp_path / "run", 4), 4, keep=1)
    (checkpoint_path(tmp_path / "store", 4) / "complete.json").write_text('{"../../evil": [1, ""]}')
    (tmp_path / "evil").write_text("x")
    with pytest.raises(InputError, match=r"names a file elsewhere: '../../evil'"):
        store.fetch(tmp_path / "deep" / "other", at_most=9)
    assert not (tmp_path / "deep" / "evil").exists()


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


def test_a_store_that_takes_nothing_is_reported_and_the_folder_has_its_newest_all_the_same(
    tiny_model, tmp_path
):
    (tmp_path / "file").write_text("no folder")
    store = CheckpointStore(f"file://{tmp_path}/file/store")
    engine = make_engine(tiny_model, 1)
    step_once(engine)
    saver = Checkpointer(tmp_path / "own", engine, tiny_model, every=1, keep=1, copies=[store])
    for version in (1, 2):
        saver.save(version, {})
        with pytest.raises(
            CheckpointError, match=f"step-00000{version} is complete, but could not be put into"
        ):
            saver.wait()
    assert [version for version, _ in complete_checkpoints(tmp_path / "own")] == [2]
