"""Ranks that have a part of each layer train, save and publish as one rank that has all of it."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.tensor_parallel.engine_part import Shard, check_divisible, deepspeed_section
from asyncrl.run.checkpoints import checkpoint_path
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.full_state import gather_state
from tests.extensions.tensor_parallel.tensor_parallel_ranks import WAYS
from tests.models import save_with_the_words_of
from tests.train.one_step import make_engine, saved_weights, snapshot, step_once

RECIPE = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A model with more than one head of keys and values."""
    return save_with_the_words_of(tiny_model, tmp_path_factory.mktemp("divided"), 32, 4)


def apart(found, expected):
    """The distance of two sets of tensors."""
    assert found.keys() == expected.keys()
    return (
        sum(float((found[name].float() - expected[name].float()).square().sum()) for name in expected) ** 0.5
    )


@pytest.mark.slow
def test_two_ranks_with_half_of_each_layer_train_and_save_what_one_rank_does(two_ranks, model, tmp_path):
    two_ranks.call("tests.extensions.tensor_parallel.tensor_parallel_ranks", model, str(tmp_path))
    for stage, dtype in WAYS:
        alone = make_engine(model, stage, dtype)
        start = snapshot(alone)
        norms = [step_once(alone, micro_batch_tokens=40).metrics["grad_norm"] for _ in range(2)]
        weights, state = snapshot(alone), gather_state(alone)
        folder = tmp_path / f"{stage}-{dtype}"
        moved = apart(weights, start)
        # Sums over halves are rounded otherwise, which bfloat16 weights show.
        near = (1e-3 if dtype == "float32" else 0.2) * moved
        assert apart(load_file(folder / "weights.safetensors"), weights) < near
        found = load_file(folder / "norms.safetensors")["norms"].tolist()
        assert found == pytest.approx(norms, rel=1e-5 if dtype == "float32" else 0.02)
        assert apart(load_file(folder / "state.safetensors"), state) < near
        # What engines and transformers load is whole, and the same.
        policy = saved_weights(folder / "policy")
        assert {name: tuple(t.shape) for name, t in policy.items()} == {
            name: tuple(t.shape) for name, t in weights.items()
        }
        assert apart(policy, load_file(folder / "weights.safetensors")) == 0

    with pytest.raises(InputError, match=r"q_proj.weight is missing.*train\.tensor_parallel"):
        Checkpointer(tmp_path / "1-float32", alone, model).load(checkpoint_path(tmp_path / "1-float32", 2))


def test_a_part_has_a_name_of_its_own_and_knows_the_whole_shape():
    shard = Shard(1, 1, 4, None)
    assert (shard.name("w"), shard.names("w")[3]) == ("w.part1of4", "w.part3of4")
    assert shard.whole_shape(torch.empty(6, 2)) == (6, 8)
    assert Shard(0, 0, 2, None).whole_shape(torch.empty(3)) == (6,)


def test_one_rank_asks_deepspeed_for_nothing():
    assert deepspeed_section(1) == {}
    assert deepspeed_section(4)["tensor_parallel"]["autotp_size"] == 4


def small(**changes):
    sizes = {
        "vocab_size": 16, "hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 6, "num_key_value_heads": 2,
    }  # fmt: skip
    config = LlamaConfig(**sizes | changes)
    return LlamaForCausalLM(config), config


@pytest.mark.parametrize(
    ("ranks", "changes", "message"),
    [
        (4, {}, "num_attention_heads=6, got 4"),
        (3, {}, "num_key_value_heads=2, got 3"),
        (2, {"intermediate_size": 9}, "intermediate_size=9, got 2"),
    ],
)
def test_layers_that_cannot_be_divided_are_refused_by_name(ranks, changes, message):
    with pytest.raises(ConfigError, match=rf"train\.tensor_parallel: must divide the model's {message}"):
        check_divisible(*small(**changes), ranks)
    check_divisible(*small(), 2)


def test_a_model_with_other_layers_is_refused():
    model, config = small()
    model.model.layers[0].other = torch.nn.Linear(2, 2)
    with pytest.raises(
        ConfigError, match=r"must be 1 for a model with other linear layers than .*layers\.0\.other"
    ):
        check_divisible(model, config, 2)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"ranks": 3}, r"train\.ranks must be a multiple of it with train\.tensor_parallel=2: .* got 3"),
        ({"ranks": 2, "zero_stage": 3}, r"train\.zero_stage must be 1 or 2 with train\.tensor_parallel=2"),
        (
            {"ranks": 4, "sequence_parallel": 2},
            r"train\.sequence_parallel must be 1 with train\.tensor_parallel=2",
        ),
        (
            {"ranks": 2, "optimizer": "muon"},
            r"train\.optimizer must be another one with train\.tensor_parallel=2",
        ),
    ],
)
def test_what_does_not_go_with_divided_layers_is_refused(train, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(RECIPE | {"train": {"tensor_parallel": 2} | train})


def test_divided_layers_are_allowed():
    assert parse_config(RECIPE | {"train": {"ranks": 2, "tensor_parallel": 2}}).train.tensor_parallel == 2
