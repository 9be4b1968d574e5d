"""What a role that is started alone takes its settings from."""

from argparse import Namespace

from asyncrl.commands.serve import _config


def test_a_packaged_model_of_a_recipe_is_taken_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert _config(Namespace(folder=None, recipe="smollm2_svamp")).model.path == str(folder)
