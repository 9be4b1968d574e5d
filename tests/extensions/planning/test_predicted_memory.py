"""Predicted memory against that of real steps: the trainer, DeepSpeed and the objective are those of a run."""

import json
from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.config import load_config
from asyncrl.extensions.planning.predict import trainer_memory
from asyncrl.extensions.planning.training import measure_step
from asyncrl.train.engine import optimizers
from scripts.testing.step_memory import measured_step

SHAPE = {
    "model_type": "qwen3",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
OVERRIDES = [
    "engine.max_model_len=512", "train.micro_batch_tokens=1024", "model.dtype=float32", "train.zero_stage=1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """The kernel of torch's AdamW that a GPU uses is there for CPUs, too."""
    monkeypatch.setattr(optimizers, "fused", lambda: True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    settings = {key: value for key, value in SHAPE.items() if key != "model_type"}
    Qwen3ForCausalLM(Qwen3Config(**settings)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["train.gradient_checkpointing=true"],
        ["lora.rank=8", "train.gradient_checkpointing=true"],
        ["train.zero_stage=0"],
        ["train.zero_stage=2", "model.dtype=bfloat16"],
        ["train.zero_stage=1", "model.dtype=bfloat16"],
        ["train.zero_stage=3", "train.gradient_checkpointing=true"],
        ["algo.kl={coef=0.1}"],
        ["algo.preset=ppo", "engine.max_model_len=256"],
        ["algo={preset='ppo_ewma'}", "train.micro_batch_tokens=512"],
    ],
    ids=" ".join,
)
def test_a_real_step_takes_what_was_predicted(model, changes):
    config = load_config("gridworld_grpo", [*OVERRIDES, *changes])
    compare(config, measured_step(config, model, SHAPE["vocab_size"]))


def compare(config, measured):
    """Compare each moment of a step, and the loading, on one rank."""
    memory = measure_step(config, {"policy": SHAPE})
    predicted = trainer_memory(config, memory)
    sums = {part: sum(item.bytes for item in items) for part, items in predicted.items()}
    if memory.critic is not None:
        # Only the policy's loading was measured.
        del sums["loading"], measured["loading"]
    elif config.train.zero_stage == 3 and config.train.ranks > 1:
        # It is gathered once, by threads of which the profiler does not see what they free: too high by chance.
        del sums["loading"], measured["loading"]
    for part, found in measured.items():
        assert sums[part] == pytest.approx(found, rel=0.1), part
    assert max(sums.values()) == pytest.approx(max(measured.values()), rel=0.02)


TWO_RANKS = [
    ["train.zero_stage=1"],
    ["train.zero_stage=1", "model.dtype=bfloat16"],
    ["train.zero_stage=2"],
    ["train.zero_stage=3", "train.gradient_checkpointing=true"],
    # A second model that is spread over the ranks.
    ["train.zero_stage=3", "model.dtype=bfloat16", "algo.kl={coef=0.1}"],
    ["lora.rank=8", "train.gradient_checkpointing=true"],
    ["train.zero_stage=3", "lora.rank=8", "train.gradient_checkpointing=true"],
]


@pytest.fixture(scope="module")
def on_two_ranks(model, two_ranks, tmp_path_factory):
    """What steps took of each of two ranks: for each, by the words of `TWO_RANKS`."""
    folder = tmp_path_factory.mktemp("peaks")
    every = json.dumps([[*OVERRIDES, "train.ranks=2", *changes] for changes in TWO_RANKS])
    two_ranks.call(
        "tests.extensions.planning.step_memory_ranks", model, str(folder), str(SHAPE["vocab_size"]), every
    )
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("changes", TWO_RANKS, ids=" ".join)
def test_a_real_step_on_two_ranks_takes_what_was_predicted_on_each(on_two_ranks, changes):
    words = [*OVERRIDES, "train.ranks=2", *changes]
    for measured in on_two_ranks:
        compare(load_config("gridworld_grpo", words), measured[" ".join(words)])


def test_flattening_a_model_with_an_adapter_does_not_copy_its_frozen_weights(model, on_two_ranks):
    frozen = (Path(model) / "model.safetensors").stat().st_size
    alone = load_config("gridworld_grpo", [*OVERRIDES, "lora.rank=8"])
    spread = on_two_ranks[0][" ".join([*OVERRIDES, "train.ranks=2", *TWO_RANKS[5]])]
    for found in (measured_step(alone, model, SHAPE["vocab_size"]), spread):
        # The adapter is a 27th of it, with a flat copy or a master and a gradient.
        assert frozen < found["loading"] < 1.2 * frozen


def test_rows_take_less_of_a_device_on_several_ranks_or_with_activations_on_the_host():
    def activations(*changes):
        config = load_config("gridworld_grpo", [*OVERRIDES, "train.gradient_checkpointing=true", *changes])
        return measure_step(config, {"policy": SHAPE | {"num_hidden_layers": 8}}).before_gradients.bytes

    alone = activations()
    assert activations("train.ranks=2", "train.sequence_parallel=2") == alone // 2
    # Of seven layers the input need not be kept: hidden size times tokens in float32.
    config = load_config("gridworld_grpo", OVERRIDES)
    tokens = config.train.micro_batch_tokens // config.max_tokens * config.max_tokens
    assert alone - activations("train.offload_activations=true") >= 6 * tokens * SHAPE["hidden_size"] * 4


def test_a_teacher_is_counted_by_its_share_of_a_rank_and_gathered_while_it_computes():
    words = ["train.zero_stage=3", "train.ranks=2", "algo.preset=opd_full", "teacher.path=teacher"]
    config = load_config("gridworld_grpo", [*OVERRIDES, *words])
    teacher = {**SHAPE, "hidden_size": 512, "tie_word_embeddings": False}
    memory = measure_step(config, {"policy": SHAPE, "teacher": teacher})
    predicted = trainer_memory(config, memory)
    found = {item.name: item.bytes for item in predicted["forward and backward"]}
    whole = memory.divided["teacher"]
    stays = whole.persistent
    assert found["teacher model"] == whole.bytes // 2 + stays
    assert found["teacher model, gathered"] == whole.bytes - stays
    assert found["whole vocabulary projection of the teacher model"] == 4096 * 512 * 4
    assert "reference" not in memory.divided
    with_reference = load_config("gridworld_grpo", [*OVERRIDES, *words[:2], "algo.kl={coef=0.1}"])
    found = trainer_memory(with_reference, measure_step(with_reference, {"policy": SHAPE}))
    names = {part: [item.name for item in items] for part, items in found.items()}
    # A reference has computed before the policy's passes with gradients begin.
    assert "reference model, gathered" in names["passes without gradient"]
    assert "reference model, gathered" not in names["forward and backward"]
