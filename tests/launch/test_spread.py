"""Which machine each process is on, by numbers worked out by hand."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.launch.spread import Machine, SpreadPlacement, spread
from asyncrl.services.node.messages import NODE_ROLES

ALL = frozenset(NODE_ROLES)


def config(**sections):
    base = {"model": {"path": "m"}, "env": {"name": "gridworld"}, "engine": {"weight_transfer": "collective"}}
    return parse_config(base | {k: base.get(k, {}) | v for k, v in sections.items()})


def machines(*gpus, roles=ALL):
    return [Machine(f"n{i}", count, roles) for i, count in enumerate(gpus, 1)]


def placed(found):
    return {name: (place.machine, place.gpus) for name, place in found.processes.items()}


def test_on_cpus_everything_but_the_trainer_is_on_the_nodes_and_spread_evenly():
    found = spread(
        config(engine={"weight_transfer": "collective", "count": 2}, rollout={"workers": 3}),
        Machine("head", 0, ALL),
        machines(0, 0, 0),
    )
    assert [part.machine for part in found.trainer] == ["head"]
    assert placed(found) == {
        "engine-0": ("n1", None),
        "engine-1": ("n2", None),
        "env": ("n3", None),
        "rollout-0": ("n1", None),
        "rollout-1": ("n2", None),
        "rollout-2": ("n3", None),
    }


def test_a_trainer_over_nodes_takes_its_gpus_first_and_engines_the_rest_the_head_last():
    sections = {
        "train": {"ranks": 4, "nodes": 2},
        "engine": {"weight_transfer": "collective", "count": 4, "tensor_parallel": 2},
    }
    found = spread(config(**sections), Machine("head", 4, ALL), machines(4, 4))
    assert [(part.machine, part.gpus) for part in found.trainer] == [("head", (0, 1)), ("n1", (0, 1))]
    engines = {name: place for name, place in placed(found).items() if name.startswith("engine")}
    assert engines == {
        "engine-0": ("n2", (0, 1)),
        "engine-1": ("n1", (2, 3)),
        "engine-2": ("n2", (2, 3)),
        "engine-3": ("head", (2, 3)),
    }
    placement = SpreadPlacement(("GPU-a", "GPU-b", "GPU-c", "GPU-d"), spread=found, head="head")
    assert placement.engine_env(3)["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-d"
    assert placement.engine_env(1)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert placement.trainer_env()["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_nodes_take_only_the_roles_they_were_started_for():
    nodes = [Machine("gpu", 0, frozenset({"engine"})), Machine("cpu", 0, frozenset({"env", "rollout"}))]
    found = spread(config(rollout={"workers": 2}), Machine("head", 0, ALL), nodes)
    assert {name: machine for name, (machine, _) in placed(found).items()} == {
        "engine-0": "gpu",
        "env": "cpu",
        "rollout-0": "cpu",
        "rollout-1": "cpu",
    }


@pytest.mark.parametrize(
    ("sections", "gpus", "message"),
    [
        (
            {"train": {"ranks": 2, "nodes": 2}},
            (),
            "train.nodes = 2 needs 1 nodes that take the trainer beside",
        ),
        ({"train": {"ranks": 4, "nodes": 2}}, (1,), "needs 2 GPUs on each, head has 1"),
        (
            {"engine": {"weight_transfer": "collective", "count": 2}},
            (1,),
            "no machine has 1 GPUs left for another engine",
        ),
        ({"engine": {}}, (0,), "set engine.weight_transfer=http"),
        ({"placement": {"trainer": [0]}}, (0,), "placement.trainer must be left out"),
    ],
)
def test_what_does_not_fit_is_refused_with_key_and_numbers(sections, gpus, message):
    head = Machine("head", 1 if any(gpus) else 0, ALL)
    with pytest.raises(ConfigError, match=message):
        spread(
            parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}} | _collective(sections)),
            head,
            machines(*gpus),
        )


def _collective(sections):
    return {"engine": {"weight_transfer": "collective"}} | sections
