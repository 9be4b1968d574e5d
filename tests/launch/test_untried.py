"""What nobody has run is said before a run, and not refused."""

from asyncrl.config import parse_config
from asyncrl.launch.checks.untried import untried


def config(**sections):
    return parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **sections})


def test_what_nobody_has_tried_is_named_with_its_keys():
    staged = config(engine={"pipeline_parallel": 2, "kv_offload_gib": 1.0}, lora={"rank": 8})
    assert untried(staged) == [
        "engine.kv_offload_gib with engine.pipeline_parallel has not been tried",
        "lora.rank with engine.pipeline_parallel has not been tried",
    ]
    assert untried(config()) == []
