"""A model folder that changes under a run is noticed before another process loads it."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.run.model_folder import check_model, context_length, fingerprint, remember_model


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"1234")
    return folder


def test_an_unchanged_model_passes(model, tmp_path):
    remember_model(tmp_path, str(model))
    check_model(tmp_path, str(model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: (m / "model.safetensors").write_bytes(b"12345"), "model.safetensors has changed"),
        (lambda m: (m / "config.json").unlink(), "config.json is gone"),
        (lambda m: (m / "extra.bin").touch(), "extra.bin is new"),
    ],
)
def test_a_change_is_refused_by_file(model, tmp_path, change, message):
    remember_model(tmp_path, str(model))
    change(model)
    with pytest.raises(ConfigError, match=message):
        check_model(tmp_path, str(model))


def test_a_resumed_run_is_held_to_what_its_first_life_saw(model, tmp_path):
    remember_model(tmp_path, str(model))
    (model / "extra.bin").touch()
    remember_model(tmp_path, str(model))
    with pytest.raises(ConfigError, match=r"extra\.bin is new"):
        check_model(tmp_path, str(model))


def test_a_hub_name_has_no_files_to_compare(tmp_path):
    assert fingerprint("org/name") == {}
    remember_model(tmp_path, "org/name")
    check_model(tmp_path, "org/name")


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/else", "a/b/c", "maker/not-downloaded"])
def test_a_model_that_is_not_here_has_no_known_context(model):
    assert context_length(model) == 0
