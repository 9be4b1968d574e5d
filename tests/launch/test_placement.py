"""Where a run's processes go among the GPUs: a pure function, so that a machine without a GPU tests any number."""

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.launch.machines.placement import placed, plan

GPUS = [str(number) for number in range(8)]
LORA = {"lora": {"rank": 8}}


def config(**sections):
    return parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **sections})


def engines(count=1, tensor_parallel=1, **more):
    return {"engine": {"count": count, "tensor_parallel": tensor_parallel, **more}}


def trainer(ranks=1, **more):
    return {"train": {"ranks": ranks, **more}}


def policy(name, **sections):
    return {"policies": {name: {"agents": [name], **sections}}}


@pytest.mark.parametrize(
    ("gpus", "sections", "line"),
    [
        (0, {}, "no GPU is used"),
        (1, {}, "1 GPU: trainer 0, engine-0 0 (shared, engines take 0.45)"),
        (1, engines(2), "1 GPU: trainer 0, engine-0 0, engine-1 0 (shared, engines take 0.225)"),
        (2, {}, "2 GPUs: trainer 0, engine-0 1"),
        (4, trainer(2) | engines(1, 2), "4 GPUs: trainer 0-1, engine-0 2-3"),
        (
            8,
            trainer(4) | engines(2, 2),
            "8 GPUs: trainer 0-3, engine-0 4-5, engine-1 6-7",
        ),
        (
            8,
            engines(3),
            "8 GPUs: trainer 0, engine-0 1, engine-1 2, engine-2 3, unused 4-7 (engine.count and train.ranks say "
            "how many are used)",
        ),
        (
            8,
            trainer(2) | engines(2, 2) | {"eval": {"every": 5}},
            "8 GPUs: trainer 0-1, engine-0 2-3, engine-1 4-5, evaluation 6-7",
        ),
        (2, {"eval": {"every": 5}}, "2 GPUs: trainer 0, engine-0 1, evaluation 1"),
        (
            4,
            policy("other", engine={"count": 1}),
            "4 GPUs: trainer 0, other-trainer 1, engine-0 2, other-engine-0 3",
        ),
        # Adapters of one base model are served by the same engines.
        (4, policy("other") | LORA, "4 GPUs: trainer 0, other-trainer 1, engine-0 2, unused 3 (engine.count and "
         "train.ranks say how many are used)"),
        (
            4,
            {"placement": {"trainer": [3, 2], "servers": [0]}} | trainer(2),
            "4 GPUs: trainer 2-3, engine-0 1, servers 0",
        ),
        (
            4,
            {"placement": {"trainer": [0, 1, 2, 3], "engines": [0, 1, 2, 3]}} | trainer(4) | engines(2, 2),
            "4 GPUs: trainer 0-3, engine-0 0-1, engine-1 2-3 (shared, engines take 0.45)",
        ),
        (
            1,
            {"train": {"schedule": "synchronous"}},
            "1 GPU: trainer 0, engine-0 0 (shared, by turns, engines take 0.7)",
        ),
        (0, {"train": {"schedule": "synchronous"}, "placement": {"sleep": True}},
         "no GPU is used, engine and trainer work by turns"),
    ],
)  # fmt: skip
def test_gpus_are_given_out(gpus, sections, line):
    assert str(plan(config(**sections), GPUS[:gpus])) == line


@pytest.mark.parametrize(
    ("gpus", "sections", "message"),
    [
        (
            8,
            trainer(2) | engines(4, 2),
            r"engine.count = 4 x engine.tensor_parallel = 2 need 8 GPUs, 6 are left beside train.ranks = 2 \(of 8\); "
            "lower one of them, or let trainer and engines share GPUs by naming them in placement.trainer",
        ),
        (2, trainer(4), "train.ranks = 4 needs as many GPUs, there are 2"),
        (1, trainer(2), "train.ranks = 2 needs as many GPUs, there is 1"),
        (1, engines(1, 2), "engine.count = 1 x engine.tensor_parallel = 2 needs 2 GPUs, there is 1"),
        (
            2,
            policy("other", engine={"count": 1}),
            r"engine.count = 1 x engine.tensor_parallel = 1 \+ policies.other.engine.count = 1 x "
            r"policies.other.engine.tensor_parallel = 1 need 2 GPUs, 0 are left beside train.ranks = 1 \+ "
            "policies.other.train.ranks = 1",
        ),
        (2, {"placement": {"servers": [0, 1]}}, "train.ranks = 1 needs 1 GPU, 0 of 2 are left"),
        (2, {"placement": {"trainer": [2]}}, r"placement.trainer: there is no GPU 2, there are 2 \(0 to 1\)"),
        (2, {"placement": {"trainer": [0, 1]}}, r"placement.trainer: train.ranks = 1 needs 1 GPU, got \[0, 1\]"),
        (4, {"placement": {"engines": [0, 1]}}, r"placement.engines: .* needs 1 GPU, got \[0, 1\]"),
        (2, {"placement": {"trainer": [0, 0]}} | trainer(2), "placement.trainer: .* a GPU each, got"),
        (4, {"placement": {"engines": [3, 3]}} | engines(1, 2), "placement.engines: .* a GPU each, got"),
        (4, {"placement": {"evaluation": [3]}, "eval": {"every": 1}} | engines(1, 2),
         "placement.evaluation: engine.tensor_parallel = 2 needs 2 GPUs"),
        (
            1,
            {"train": {"schedule": "synchronous"}, "eval": {"every": 2}, "placement": {"sleep": True}},
            "eval.every=2: an evaluation would need memory .* placement.sleep=false",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_keys_and_numbers(gpus, sections, message):
    with pytest.raises(ConfigError, match=message):
        plan(config(**sections), GPUS[:gpus])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"train": {"schedule": "partial"}}, "placement.sleep must be false .* train.schedule='partial'"),
        (
            {"train": {"schedule": "synchronous"}} | engines(weight_transfer="collective"),
            "placement.sleep: engine.weight_transfer must be 'shared_file'",
        ),
        (
            {"train": {"schedule": "synchronous"}} | policy("other"),
            "placement.sleep must be false .* where there are policies",
        ),
    ],
)
def test_engines_sleep_only_where_nothing_samples_meanwhile(sections, message):
    with pytest.raises(ConfigError, match=message):
        config(placement={"sleep": True}, **sections)


def test_each_process_sees_its_own_slice_by_the_names_that_the_launcher_was_given():
    names = ["MIG-a", "GPU-b", "5", "GPU-c"]
    found = plan(config(**trainer(2), **engines(2)), names)
    shown = [found.trainer_env(), found.engine_env(0), found.engine_env(1), found.service_env()]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in shown] == ["MIG-a,GPU-b", "5", "GPU-c", ""]
    on_cpu = plan(config(), [])
    assert on_cpu.trainer_env() == on_cpu.engine_env(0) == on_cpu.service_env() == {}


def test_processes_start_together_unless_they_share_a_gpu():
    apart, beside, crowded = (
        plan(config(), GPUS[:2]),
        plan(config(), GPUS[:1]),
        plan(config(**engines(2)), GPUS[:1]),
    )
    assert [(one.engines_first, one.engines_in_turn) for one in (apart, beside, crowded)] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_what_follows_from_the_placement_replaces_auto_and_nothing_else():
    recipe = config()
    found = placed(recipe, plan(recipe, GPUS[:1]))
    assert (found.engine.gpu_memory_utilization, found.placement.sleep) == (0.45, False)
    alone = placed(recipe, plan(recipe, GPUS[:2]))
    assert alone.engine.gpu_memory_utilization == 0.9
    given = config(engine={"gpu_memory_utilization": 0.3})
    assert placed(given, plan(given, GPUS[:1])).engine.gpu_memory_utilization == 0.3
    # What is recorded is what the run continues with.
    assert parse_config(found.model_dump(mode="json"), strict=False) == found
