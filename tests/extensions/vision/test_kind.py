"""Which models are vision models, and what an engine of one is started with."""

import json

import pytest

from asyncrl.errors import ConfigError
from asyncrl.model_kinds import kind_of


def described(folder, **said):
    (folder / "config.json").write_text(json.dumps(said))
    return str(folder)


def test_a_model_that_reads_text_alone_is_of_no_kind(tmp_path):
    assert kind_of(described(tmp_path, model_type="qwen3")) is None
    assert kind_of(str(tmp_path / "absent")) is None


def test_a_vision_model_of_another_family_is_refused_wherever_it_is_loaded(tmp_path):
    model = described(tmp_path, model_type="gemma3", vision_config={})
    kind = kind_of(model)
    for load in (kind.image_processor, kind.trained):
        with pytest.raises(
            ConfigError, match="'gemma3'; those of qwen2_vl, qwen2_5_vl, qwen3_vl are supported"
        ):
            load(model)


def test_an_engine_of_a_vision_model_is_told_so_and_takes_as_many_images_as_a_trajectory_has(tmp_path):
    served = kind_of(described(tmp_path, model_type="qwen3_vl", vision_config={})).served()
    assert served.arguments[:2] == ["--limit-mm-per-prompt", '{"image": 256, "video": 0}']
    assert served.variables == {"ASYNCRL_VISION": "1"}
