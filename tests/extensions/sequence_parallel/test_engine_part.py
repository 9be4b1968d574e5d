"""What ranks that compute rows together ask of a model; `test_gradient_agreement` compares them with one rank."""

import pytest
import torch
from transformers import LlamaConfig

from asyncrl.errors import ConfigError
from asyncrl.extensions.sequence_parallel import engine_part
from asyncrl.train.models import prefix_tree


def test_heads_that_cannot_be_dealt_to_the_ranks_are_refused_by_name():
    config = LlamaConfig(hidden_size=48, num_attention_heads=6, num_key_value_heads=1)
    engine_part.check_heads(config, 3)
    with pytest.raises(ConfigError, match=r"must divide the model's num_attention_heads=6, got 4"):
        engine_part.check_heads(config, 4)


def test_ranks_that_cannot_be_grouped_are_refused():
    with pytest.raises(
        ConfigError, match=r"train\.sequence_parallel: must divide the number of ranks, got 3 for 1"
    ):
        engine_part.use(3)
    ids = torch.ones(1, 3, dtype=torch.long)
    assert prefix_tree.tree_of(ids, ids > 0).group is None
