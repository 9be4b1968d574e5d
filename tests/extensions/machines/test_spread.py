"""Which machine each process is on, by numbers worked out by hand."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.messages import NODE_ROLES
from asyncrl.extensions.machines.spread import (
    Machine,
    Place,
    SpreadPlacement,
    check_one_machine,
    engine_section,
    on_nodes,
    relocated,
    replaced,
    spread,
    with_all,
    with_fewer,
    with_room,
    without,
)
from asyncrl.types import MAIN_POLICY

ALL = frozenset(NODE_ROLES)


def config(**sections):
    base = {
        "model": {"path": "m"}, "env": {"name": "gridworld", "services": 1},
        "engine": {"weight_transfer": "collective"},
    }  # fmt: skip
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


def test_a_buffer_on_a_node_is_where_no_trainer_is_and_moves_to_another():
    head, nodes = Machine("head", 0, ALL), machines(0, 0, 0)
    sections = {"buffer": {"machine": "node"}, "train": {"ranks": 2, "nodes": 2}}
    found = spread(config(**sections), head, nodes)
    assert placed(found)["buffer"] == ("n2", None)
    assert placed(replaced(found, "buffer", head, [nodes[0], nodes[2]]))["buffer"] == ("n3", None)
    assert placed(replaced(found, "buffer", head, []))["buffer"] == ("head", None)
    with pytest.raises(ConfigError, match=r"buffer.machine = node: no node takes the buffer"):
        spread(config(**sections), head, machines(0, 0, roles=ALL - {"buffer"}))


def test_the_trainers_of_further_policies_are_on_the_head_beside_the_first():
    sections = {
        "lora": {"rank": 4},
        "engine": {"weight_transfer": "http"},
        "policies": {"b": {"agents": ["b"], "train": {"ranks": 2}}, "c": {"agents": ["c"]}},
    }
    found = spread(config(**sections), Machine("head", 4, ALL), machines(1))
    assert placed(found) | {"env": None, "rollout-0": None} == {
        "b-trainer": ("head", (1, 2)), "c-trainer": ("head", (3,)), "engine-0": ("n1", (0,)),
        "env": None, "rollout-0": None,
    }  # fmt: skip
    placement = SpreadPlacement(("0", "1", "2", "3"), spread=found, head="head")
    shown = [placement.trainer_env(policy)["CUDA_VISIBLE_DEVICES"] for policy in (MAIN_POLICY, "b", "c")]
    assert shown == ["0", "1,2", "3"]
    with pytest.raises(ConfigError, match=r"policies.c.train.ranks = 1 needs as many GPUs of this machine"):
        spread(config(**sections), Machine("head", 3, ALL), machines(1))


def test_the_trainers_and_buffers_of_further_policies_may_be_over_machines_as_the_first_ones():
    sections = {
        "lora": {"rank": 4},
        "engine": {"weight_transfer": "http"},
        "train": {"ranks": 2, "nodes": 2},
        "buffer": {"machine": "node"},
        "policies": {"env-b": {"agents": ["b"], "train": {"ranks": 6, "nodes": 3}}, "c": {"agents": ["c"]}},
    }
    made, head, nodes = config(**sections), Machine("head", 5, ALL), machines(4, 4, 4)
    found = spread(made, head, nodes)

    def parts(one, name):
        return [(part.machine, part.gpus) for part in one.parts(name)]

    assert parts(found, "trainer") == [("head", (0,)), ("n1", (0,))]
    assert parts(found, "env-b-trainer") == [("head", (1, 2)), ("n2", (0, 1)), ("n3", (0, 1))]
    # Of ranks of its own: the section is the recipe's but for what the policy says.
    assert parts(found, "c-trainer") == [("head", (3,)), ("n1", (1,))]
    assert {found.parts(name)[0].machine for name in ("buffer", "env-b-buffer", "c-buffer")} == {
        "n1",
        "n2",
        "n3",
    }
    alone = {name: sections[name] for name in ("lora", "engine", "policies")}
    assert on_nodes(made, "c") and not on_nodes(config(**alone), "c")

    fewer = relocated(found, "env-b-trainer", made, head, nodes[1:2])
    assert parts(fewer, "env-b-trainer") == [("head", (1, 2)), ("n2", (0, 1))]
    assert parts(fewer, "trainer") == parts(found, "trainer")
    again = with_all(fewer, "env-b-trainer", made, head, nodes)
    assert parts(again, "env-b-trainer") == parts(found, "env-b-trainer")
    moved = relocated(found, "env-b-buffer", made, head, [n for n in nodes if n.name != "n2"])
    assert moved.parts("env-b-buffer")[0].machine in ("n1", "n3")


@pytest.mark.parametrize(
    ("sections", "refused"),
    [
        (
            {"policies": {"b": {"agents": ["b"], "engine": {"weight_transfer": "shared_file"}}}},
            r"policies.b.engine.weight_transfer must not be 'shared_file' where a run has several machines",
        ),
        (
            {"policies": {"b": {"agents": ["b"], "engine": {"nodes": 4, "tensor_parallel": 4}}}},
            r"policies.b.engine.nodes: no further machine has 0 GPUs for part 4 of another engine",
        ),
        (
            {"policies": {"b": {"agents": ["b"], "train": {"nodes": 4, "ranks": 4}}}, "lora": {"rank": 4}},
            r"policies.b.train.nodes: no further machine has 0 GPUs for part 4 of another trainer",
        ),
        (
            {"lora": {"rank": 4}, "policies": {"b": {"agents": ["b"], "buffer": {"machine": "node"}}}},
            "policies.b.buffer.machine = node: no node takes the buffer",
        ),
    ],
)
def test_further_policies_that_need_more_than_the_head_are_refused(sections, refused):
    policies = {"policies": {"b": {"agents": ["b"]}}, "engine": {"weight_transfer": "http"}}
    with pytest.raises(ConfigError, match=refused):
        spread(
            config(**(policies | sections)), Machine("head", 0, ALL), machines(0, 0, roles=ALL - {"buffer"})
        )


def test_the_engines_of_a_further_policy_are_on_nodes_as_those_of_the_first():
    sections = {
        "engine": {"weight_transfer": "http"},
        "policies": {"env-b": {"agents": ["b"], "engine": {"count": 2, "tensor_parallel": 2}}},
    }
    head, nodes = Machine("head", 2, ALL), machines(3, 4)
    found = spread(config(**sections), head, nodes)
    assert {name: place for name, place in placed(found).items() if "engine" in name} == {
        "engine-0": ("n1", (0,)), "env-b-engine-0": ("n2", (0, 1)), "env-b-engine-1": ("n1", (1, 2)),
    }  # fmt: skip
    placement = SpreadPlacement(("0", "1"), spread=found, head="head")
    assert placement.engine_env(1, "env-b")["CUDA_VISIBLE_DEVICES"] == "1,2"
    # It takes the place of an engine, not of an environment, wherever its policy's name begins so.
    nodes = [nodes[1], Machine("n3", 2, frozenset({"engine"}))]
    assert placed(replaced(found, "env-b-engine-1", head, nodes))["env-b-engine-1"] == ("n3", (0, 1))
    larger = sections | {"policies": {"env-b": {"agents": ["b"], "engine": {"tensor_parallel": 4}}}}
    with pytest.raises(
        ConfigError, match=r"policies.env-b.engine.tensor_parallel = 4: one engine is on one machine"
    ):
        spread(config(**larger), head, machines(3))
    with pytest.raises(ConfigError, match=r"policies.b.engine.nodes = 2: the run is on one machine"):
        check_one_machine(
            config(policies={"b": {"agents": ["b"], "engine": {"nodes": 2, "tensor_parallel": 2}}})
        )


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


def over_two(**more):
    return {"engine": {"weight_transfer": "collective", "tensor_parallel": 4, "nodes": 2, **more}}


def parts(found, name="engine-0"):
    return [(part.machine, part.gpus) for part in found.parts(name)]


def test_an_engine_over_machines_has_its_parts_on_different_ones_and_one_that_is_lost_moves_alone():
    head, nodes = Machine("head", 1, ALL), machines(2, 4, 2)
    found = spread(config(**over_two()), head, nodes)
    assert parts(found) == [("n1", (0, 1)), ("n2", (0, 1))]
    assert "n1: engine-0 (GPU 0+1)" in str(found)
    assert "n2: engine-0 (GPU 0+1)" in str(found)
    # Its second machine is lost: never both parts on one, though n1 had no GPU for it and n2 would have two more.
    moved = replaced(found, "engine-0", head, [nodes[0], nodes[2]], part=1)
    assert parts(moved) == [("n1", (0, 1)), ("n3", (0, 1))]
    assert replaced(found, "engine-0", head, [nodes[0]], part=1) is None
    # Its first one, with the server, is lost.
    moved = replaced(found, "engine-0", head, nodes[1:], part=0)
    assert parts(moved) == [("n3", (0, 1)), ("n2", (0, 1))]


def test_a_further_engine_needs_as_many_machines_and_frees_them_when_it_leaves():
    head, nodes = Machine("head", 1, ALL), machines(2, 4, 2)
    found = spread(config(**over_two()), head, nodes)
    grown = with_room(found, "engine-1", 2, head, nodes, parts=2)
    assert parts(grown, "engine-1") == [("n2", (2, 3)), ("n3", (0, 1))]
    assert with_room(grown, "engine-2", 2, head, nodes, parts=2) is None
    assert without(grown, "engine-1") == found


def test_on_cpus_the_head_is_the_second_machine_of_an_engine_if_there_is_one_node_only():
    found = spread(config(**over_two(tensor_parallel=2)), Machine("head", 0, ALL), machines(0))
    assert parts(found) == [("n1", None), ("head", None)]


def test_what_ran_on_a_lost_machine_goes_where_room_is_and_to_the_head_last():
    sections = {
        "train": {"ranks": 2, "nodes": 2},
        "engine": {"weight_transfer": "collective", "count": 2},
        "env": {"name": "gridworld", "services": 2},
    }
    head, nodes = Machine("head", 2, ALL), machines(1, 1, 2)
    found = spread(config(**sections), head, nodes)
    assert [part.machine for part in found.trainer] == ["head", "n1"]
    assert placed(found) == {
        "engine-0": ("n2", (0,)),
        "engine-1": ("n3", (0,)),
        "env-0": ("n1", ()),
        "env-1": ("n2", ()),
        "rollout-0": ("n3", ()),
    }
    # n2 is lost. Its engine takes the other GPU of n3; the environments go to the machine with the fewest processes.
    left = [nodes[0], nodes[2]]
    moved = replaced(found, "engine-0", head, left)
    assert placed(moved)["engine-0"] == ("n3", (1,))
    moved = replaced(moved, "env-1", head, left)
    assert placed(moved)["env-1"] == ("n1", ())
    # n3 is lost, too: only the head has a free GPU, and then none has.
    moved = replaced(moved, "engine-0", head, nodes[:1])
    assert placed(moved)["engine-0"] == ("head", (1,))
    assert replaced(moved, "engine-1", head, nodes[:1]) is None
    # The trainer's second part never joins the first on the head.
    assert replaced(found, "trainer", head, [nodes[1]], part=1) is None
    assert replaced(found, "trainer", head, nodes[1:], part=1).trainer[1] == Place("n3", (1,))


def test_a_trainer_goes_on_with_fewer_machines_and_comes_back_to_all():
    four = config(train={"ranks": 8, "nodes": 4})
    head, nodes = Machine("head", 2, ALL), machines(2, 2, 2, 2)
    found = spread(four, head, nodes)
    assert [part.machine for part in found.trainer] == ["head", "n1", "n2", "n3"]
    fewer = with_fewer(found, "trainer", four, {"head", "n1", "n3"})
    assert [part.machine for part in fewer.trainer] == ["head", "n1", "n3"]
    assert fewer.processes == found.processes
    # n2 and n3 are lost: n5 takes the place of one, and the other's ranks are left out.
    left = [nodes[0], nodes[3], Machine("n5", 2, ALL)]
    assert [part.machine for part in relocated(found, "trainer", four, head, left).trainer] == [
        "head",
        "n1",
        "n5",
    ]
    assert relocated(found, "trainer", four, head, nodes) == found
    assert placed(relocated(found, "engine-0", four, head, [nodes[0], nodes[1], nodes[2], left[2]]))[
        "engine-0"
    ] == ("n5", (0,))
    assert relocated(found, "engine-0", four, head, nodes[:3]) is None
    # The engine has a GPU of n4, and n1 and n3 have parts already.
    assert with_all(fewer, "trainer", four, head, [nodes[0], nodes[2], nodes[3]]) is None
    again = with_all(fewer, "trainer", four, head, [*nodes, Machine("n5", 2, ALL)])
    assert [(part.machine, part.gpus) for part in again.trainer][2:] == [("n3", (0, 1)), ("n5", (0, 1))]
    assert with_all(found, "trainer", four, head, nodes) is None, "none are missing"


def test_a_trainer_with_fewer_machines_keeps_what_ranks_compute_together_and_its_least_number():
    together = config(train={"ranks": 4, "nodes": 4, "sequence_parallel": 2})
    found = spread(together, Machine("head", 1, ALL), machines(1, 1, 1, 1))
    assert [
        part.machine for part in with_fewer(found, "trainer", together, {"head", "n1", "n3"}).trainer
    ] == [
        "head",
        "n1",
    ]
    assert with_fewer(found, "trainer", together, {"head"}) is None, "two ranks compute the same rows"
    assert with_fewer(found, "trainer", together, {"n1", "n2"}) is None, "rank 0 is on the head"
    at_least = config(train={"ranks": 4, "nodes": 4, "min_nodes": 3})
    assert with_fewer(found, "trainer", at_least, {"head", "n1"}) is None
    assert len(with_fewer(found, "trainer", at_least, {"head", "n1", "n2"}).trainer) == 3


def test_a_process_that_is_added_goes_where_room_is_and_frees_it_when_it_leaves():
    head, nodes = Machine("head", 1, ALL), machines(1, 1)
    found = spread(config(), head, nodes)
    assert placed(found) == {"engine-0": ("n1", (0,)), "env": ("n2", ()), "rollout-0": ("n1", ())}
    found = with_room(found, "engine-1", 1, head, nodes)
    assert placed(found)["engine-1"] == ("n2", (0,))
    assert with_room(found, "engine-2", 1, head, nodes) is None
    # A machine that has joined since has the fewest processes.
    joined = [*nodes, Machine("n3", 0, ALL)]
    assert placed(with_room(found, "rollout-1", 0, head, joined))["rollout-1"] == ("n3", None)
    freed = without(found, "engine-1")
    assert placed(with_room(freed, "engine-1", 1, head, nodes))["engine-1"] == ("n2", (0,))


def test_an_engine_of_another_policy_goes_where_one_has_left():
    policies = {"b": {"agents": ["b"], "engine": {"count": 1, "max_num_seqs": 8}}}
    recipe = config(engine={"weight_transfer": "http", "count": 2}, policies=policies)
    head, nodes = Machine("head", 2, ALL), machines(1, 1, 1)
    found = spread(recipe, head, nodes)
    (left,) = placed(found)["engine-1"][1]
    assert with_room(found, "b-engine-1", 1, head, nodes) is None
    found = with_room(without(found, "engine-1"), "b-engine-1", 1, head, nodes)
    assert placed(found)["b-engine-1"] == ("n2", (left,))
    assert engine_section(recipe, "b-engine-1").max_num_seqs == 8
    assert engine_section(recipe, "engine-1").max_num_seqs == recipe.engine.max_num_seqs
    assert [engine_section(recipe, name) for name in ("b-trainer", "env", "rollout-0")] == [None] * 3


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
        (
            {"engine": {"weight_transfer": "collective", "tensor_parallel": 4}},
            (2, 2),
            "engine.tensor_parallel = 4: one engine is on one machine, .* the largest machine has 2 GPUs",
        ),
        (
            over_two(tensor_parallel=8),
            (2, 2),
            "8: on engine.nodes = 2 needs 4 GPUs on each, and the largest .* 2",
        ),
        (over_two(count=2), (2, 2), r"engine.count: no machine has 2 GPUs left for another engine"),
        (
            over_two(nodes=4, tensor_parallel=8),
            (2, 2),
            "engine.nodes: no further machine has 2 GPUs for part 3 of another engine; left are .*0 on n2",
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
