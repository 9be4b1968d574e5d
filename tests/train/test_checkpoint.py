"""Checkpoints open in transformers with the weights that were trained, and appear whole or not at all."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.train.checkpoint import latest_checkpoint, save_policy
from tests.train.one_step import make_engine, snapshot, step_once


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


def test_saving_again_replaces_the_folder_and_leaves_no_partial_one(trained, tiny_model, tmp_path):
    target = tmp_path / "step-000001"
    target.mkdir()
    (target / "stale").touch()
    (tmp_path / "step-000001.partial").mkdir()
    save_policy(trained, target, tiny_model)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]
    assert not (target / "stale").exists()


def test_the_latest_checkpoint_is_the_highest_whole_one(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    for name in ("step-000002", "step-000010", "step-000011.partial"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-000010"
