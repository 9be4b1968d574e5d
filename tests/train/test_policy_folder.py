"""The policy's folder opens in transformers with the weights that were trained."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.train.one_step import make_engine, save_policy, snapshot, step_once


@pytest.fixture(scope="module")
def trained(tiny_model):
    engine = make_engine(tiny_model)
    step_once(engine)
    return engine


def test_a_checkpoint_has_the_trained_weights_and_the_tokenizer(trained, tiny_model, tmp_path):
    folder = save_policy(trained, tmp_path / "checkpoints" / "step-000001", tiny_model)
    loaded = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    original = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    weights = snapshot(trained)
    assert set(loaded) == set(weights)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    norm = "model.norm.weight"
    assert not torch.equal(loaded[norm], original[norm])
    tokenizer, base = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(tiny_model)
    assert tokenizer.chat_template == base.chat_template
    assert tokenizer.encode("goal north east") == base.encode("goal north east")


def test_a_checkpoint_keeps_settings_that_engines_alone_read_and_every_form_of_tokenizer(
    trained, tiny_model, tmp_path
):
    base = tmp_path / "base"
    shutil.copytree(tiny_model, base)
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(settings | {"scoring_func": "sigmoid"}))
    (base / "tokenizer.model").write_bytes(b"pieces")
    folder = save_policy(make_engine(str(base)), tmp_path / "checkpoints" / "step-000001", str(base))
    assert json.loads((folder / "config.json").read_text())["scoring_func"] == "sigmoid"
    assert (folder / "tokenizer.model").read_bytes() == b"pieces"
