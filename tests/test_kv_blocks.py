"""Blocks of the KV cache are short where contexts are."""

import itertools
import platform

import pytest

from asyncrl import kv_blocks
from asyncrl.services.engine import service
from asyncrl.services.engine.service import EngineOptions, build_command


@pytest.mark.parametrize(
    ("machine", "context", "tokens"),
    [
        ("x86_64", 256, 16),
        ("x86_64", 1024, 16),
        ("aarch64", 256, 32),
        ("x86_64", 1025, 0),
        ("aarch64", 2048, 0),
    ],
)
def test_short_contexts_get_the_shortest_blocks_of_the_cpu(monkeypatch, machine, context, tokens):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert kv_blocks.short_blocks(context) == tokens


def test_an_engine_on_a_cpu_is_told_so_and_a_recipe_may_still_choose(monkeypatch):
    def block(on_cpu, **options):
        monkeypatch.setattr(service, "on_cpu", lambda: on_cpu)
        command = build_command(EngineOptions("m", **options), 1)
        return [after for word, after in itertools.pairwise(command) if word == "--block-size"]

    own = str(kv_blocks.short_blocks(256))
    assert block(True, max_model_len=256) == [own]
    assert block(True, max_model_len=4096) == block(False, max_model_len=256) == []
    # The last one counts.
    assert block(True, max_model_len=256, extra_args=["--block-size", "64"]) == [own, "64"]


@pytest.mark.parametrize(
    ("context", "model", "tokens"),
    [
        (32_768, {"num_attention_heads": 16}, 64),
        (32_768, {"num_attention_heads": 16, "layer_types": ["full_attention", "sliding_attention"]}, 64),
        (131_072, {"text_config": {"num_attention_heads": 16}, "vision_config": {}}, 64),
        (32_767, {"num_attention_heads": 16}, 0),
        # A latent for each token, states, attention that is linear or chosen by an index: vLLM has blocks for them.
        (65_536, {"num_attention_heads": 16, "kv_lora_rank": 512}, 0),
        (65_536, {"num_attention_heads": 16, "mamba_d_state": 256}, 0),
        (65_536, {"num_attention_heads": 16, "layer_types": ["linear_attention", "full_attention"]}, 0),
        (65_536, {"num_attention_heads": 16, "index_topk": 2048}, 0),
        (65_536, {}, 0),
    ],
)
def test_long_contexts_get_longer_blocks_on_a_gpu(context, model, tokens):
    assert kv_blocks.long_blocks(context, model) == tokens


def test_an_engine_of_long_contexts_hashes_less(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "num_attention_heads": 16}')

    def told(on_cpu, max_model_len):
        monkeypatch.setattr(service, "on_cpu", lambda: on_cpu)
        command = build_command(EngineOptions(str(tmp_path), max_model_len=max_model_len), 1)
        wanted = ("--block-size", "--prefix-caching-hash-algo")
        return [pair for pair in itertools.pairwise(command) if pair[0] in wanted]

    xxhash = ("--prefix-caching-hash-algo", "xxhash")
    assert told(False, 65_536) == [xxhash, ("--block-size", "64")]
    assert told(True, 65_536) == [xxhash]
    assert told(False, 16_384) == told(True, 16_384) == []


@pytest.mark.slow
def test_vllm_knows_the_hash():
    from typing import get_args

    from vllm.config.cache import PrefixCachingHashAlgo

    assert "xxhash" in get_args(PrefixCachingHashAlgo)
