"""What GPUs take, worked out from their data sheets."""

import pytest

from asyncrl.config import apply_override, load_config, parse_config
from asyncrl.errors import ConfigError
from asyncrl.plan.architectures import architecture
from asyncrl.simulation.hardware import GPUS, gpu_costs, gpu_named, model_size, operations


def recipe(*changes):
    data = load_config("math_qwen3_grpo", ["model.dtype=bfloat16"]).model_dump(mode="json")
    for change in changes:
        apply_override(data, change)
    return parse_config(data, "test", strict=False)


@pytest.mark.parametrize(
    ("model", "parameters", "active"),
    [
        ("Qwen/Qwen3-0.6B", 0.596e9, 0.596e9),
        ("Qwen/Qwen3-8B", 8.19e9, 7.57e9),
        ("Qwen/Qwen3-30B-A3B", 30.5e9, 3.03e9),
    ],
)
def test_parameters_are_counted_as_their_makers_do(model, parameters, active):
    config = recipe(f"model.path={model}")
    size = model_size(architecture(config, "model.path", model))
    assert size.parameters == pytest.approx(parameters, rel=0.005)
    assert size.active == pytest.approx(active, rel=0.01)


def test_an_iteration_reads_the_weights_once():
    costs = gpu_costs(recipe("train.max_logp_error=0"), GPUS["h100"], 1, 1, by_turns=False)
    weights = 596_000_000 * 2
    assert costs.engine.iteration_s == pytest.approx(0.003 + weights / (3.35e12 * 0.7), rel=0.01)
    assert costs.engine.prefill_token_s == pytest.approx(2 * 596e6 / (989e12 * 0.45), rel=0.01)
    passes = 6 + 2 * recipe().train.gradient_checkpointing
    assert costs.trainer.token_s == pytest.approx(passes * 596e6 / (989e12 * 0.35), rel=0.01)
    assert costs.trainer.publish_s == pytest.approx(weights / 4e9, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], 8),
        (["train.max_logp_error=0"], 6),
        (["train.gradient_checkpointing=true"], 10),
        (["train.num_minibatches=2"], 10),
        (["algo.preset=ppo_ewma", "train.num_minibatches=2"], 10),
        (["algo.kl.coef=0.1"], 10),
        (["algo.kl.coef=0.1", "reference.path=http://127.0.0.1:1"], 8),
        (["algo.preset=opd", "teacher.path=some/model"], 10),
        (["algo.preset=opd", "teacher.path=http://127.0.0.1:1"], 8),
        # The policy's values need its pass before the step; the critic has one of its own and learns.
        (["algo.preset=ppo"], 18),
        (["algo.preset=ppo", "algo.value.trunk=shared"], 10),
        (["algo.preset=archer", "algo.value.steps=4"], 8 + 2 + 4 * (6 + 2)),
    ],
)
def test_a_trainer_pays_for_every_pass_of_its_objective(changes, expected):
    config = recipe("train.gradient_checkpointing=false", *changes)
    assert operations(config) == expected


def test_more_gpus_train_faster_and_a_model_split_over_two_decodes_faster():
    one, two = (gpu_costs(recipe(), GPUS["h100"], ranks, 1, False) for ranks in (1, 2))
    split = gpu_costs(recipe(), GPUS["h100"], 1, 2, False)
    assert one.trainer.token_s == pytest.approx(2 * two.trainer.token_s)
    assert split.engine.iteration_s < one.engine.iteration_s
    assert split.engine.kv_tokens > one.engine.kv_tokens


@pytest.mark.parametrize(
    ("gpu", "ranks", "zero", "fits"),
    [("h100", 1, 3, False), ("h100", 4, 3, True), ("h100", 4, 1, True), ("a100-40", 4, 1, False)],
)
def test_what_cannot_fit_is_left_out(gpu, ranks, zero, fits):
    config = recipe("model.path=Qwen/Qwen3-8B", f"train.zero_stage={zero}")
    assert (gpu_costs(config, GPUS[gpu], ranks, 1, False) is not None) == fits


def test_an_unknown_gpu_is_refused():
    with pytest.raises(ConfigError, match=r"--device: must be one of a100-40, .*, got 'tpu'"):
        gpu_named("tpu")
