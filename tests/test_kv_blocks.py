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
