"""Groups whose experts the buffer does not take are refused before a run starts."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.router_replay.checks import check_group_size


def replayed(group_size, tokens):
    return parse_config(
        {
            "model": {"path": "m"},
            "env": {"name": "gridworld"},
            "rollout": {"group_size": group_size},
            "engine": {"max_model_len": tokens},
            "train": {"router_replay": True},
        }
    )


def test_groups_whose_experts_are_more_than_the_buffer_takes_are_refused():
    small = {"num_experts_per_tok": 8, "num_hidden_layers": 48, "num_experts": 128}
    large = {"num_experts_per_tok": 8, "num_hidden_layers": 94, "num_experts": 128}
    check_group_size(replayed(16, 65_536), small)
    check_group_size(replayed(16, 131_072), large)
    with pytest.raises(
        ConfigError, match=r"has 3072 MiB, and the buffer takes 1907; .* at most 162,760 tokens"
    ):
        check_group_size(replayed(16, 262_144), large)
