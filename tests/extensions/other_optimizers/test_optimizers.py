"""Each optimizer takes the steps of its definition under every ZeRO stage, offloaded or not, and continues exactly."""

import pytest
import torch
from safetensors.torch import load_file
from torch.optim import AdamW

from asyncrl.config import TrainConfig
from asyncrl.extensions.other_optimizers.muon import is_matrix, orthogonal
from asyncrl.run.checkpoints import checkpoint_path
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.accumulated import MAX_GRAD_NORM
from asyncrl.train.engine.deepspeed_engine import deepspeed_config
from asyncrl.train.engine.full_state import gather_state
from asyncrl.train.engine.optimizers import make_optimizer
from asyncrl.train.models.loading import load_policy
from asyncrl.train.step.step_batch import build_step_batch
from tests.packages import ImportedWhenUsed
from tests.train.factories import batch_of_groups, group
from tests.train.one_step import LEARNING_RATE, make_engine, snapshot, step_once

eight_bits = ImportedWhenUsed("asyncrl.extensions.other_optimizers.eight_bits")
bnb_functional = ImportedWhenUsed("bitsandbytes.functional")
bnb_optim = ImportedWhenUsed("bitsandbytes.optim")

STAGES = [0, 1, 2, 3]
WAYS = [
    *((stage, dtype, {"optimizer": "muon"}) for stage in STAGES for dtype in ("float32", "bfloat16")),
    (1, "float32", {"optimizer": "adamw_8bit"}),
    (3, "bfloat16", {"optimizer": "adamw_8bit"}),
    (3, "float32", {"offload": "optimizer"}),
    (3, "bfloat16", {"offload": "parameters"}),
    (3, "bfloat16", {"offload": "parameters", "optimizer": "muon"}),
]


def worst(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def distance(one, other):
    return sum(float((one[name] - other[name]).square().sum()) for name in one) ** 0.5


def rows():
    return torch.arange(10, 30).view(2, 10), torch.ones(2, 10, dtype=torch.bool)


def take_steps(engine, count=3):
    for _ in range(count):
        engine.backward(engine.logp(*rows(), 1.0).mean(), True)
        engine.step(LEARNING_RATE)
    return snapshot(engine)


def by_torch(model, count=3):
    """The weights after steps of torch's own Muon and AdamW on one process."""
    policy = load_policy(model, "float32")
    named = list(policy.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed_tokens" not in name]
    rest = [p for name, p in named if p.ndim < 2 or "embed_tokens" in name]
    muon = torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adam = AdamW(rest, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for _ in range(count):
        policy.zero_grad()
        policy(*rows(), 1.0)["logp"].mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
        muon.step()
        adam.step()
    return {name: p.detach() for name, p in policy.model.named_parameters()}


@pytest.fixture(scope="module")
def expected(tiny_model):
    return by_torch(tiny_model)


@pytest.mark.parametrize("stage", STAGES)
def test_muon_is_that_of_torch_for_matrices_and_adamw_for_the_rest(tiny_model, expected, stage):
    start = snapshot(make_engine(tiny_model, stage))
    moved = distance(expected, start)
    # Where a gradient has no component the iteration turns the last bits of bfloat16 into a step.

    assert distance(take_steps(make_engine(tiny_model, stage, optimizer="muon")), expected) < 0.02 * moved
    assert distance(take_steps(make_engine(tiny_model, stage)), expected) > 0.2 * moved


@pytest.mark.slow
def test_muon_on_two_ranks_is_that_of_one(tiny_model, expected, two_ranks, tmp_path):
    two_ranks.call("tests.extensions.other_optimizers.optimizer_ranks", tiny_model, str(tmp_path))
    moved = distance(expected, snapshot(make_engine(tiny_model)))
    for stage in STAGES:
        assert distance(load_file(tmp_path / f"muon-{stage}.safetensors"), expected) < 0.02 * moved


def test_embeddings_heads_and_vectors_are_no_matrices_and_experts_are():
    shapes = {
        "model.model.layers.0.mlp.up_proj.weight": (8, 4),
        "model.model.layers.0.mlp.experts.gate_up_proj": (2, 8, 4),
        "model.model.layers.0.self_attn.q_proj.bias": (8,),
        "model.model.norm.weight": (4,),
        "model.model.embed_tokens.weight": (16, 4),
        "model.lm_head.weight": (16, 4),
        "value_head.weight": (1, 4),
    }
    assert [is_matrix(name, shape) for name, shape in shapes.items()] == [True] * 2 + [False] * 5


def test_each_expert_is_orthogonalized_for_itself():
    matrices = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    matrices[1] *= 100
    found = orthogonal(matrices)
    assert torch.equal(found[1], orthogonal(matrices[1]))
    values = torch.linalg.svdvals(found.float())
    # Jordan's coefficients bring them near 1, not to it.
    assert float(values.min()) > 0.5 and float(values.max()) < 1.3


def test_moments_of_8_bits_move_weights_as_adamw_does(tiny_model):
    exact, rounded = make_engine(tiny_model, 1), make_engine(tiny_model, 1, optimizer="adamw_8bit")
    start = snapshot(exact)
    moved = worst(take_steps(exact), start)
    assert moved > 2e-3
    assert 0 < distance(take_steps(rounded), snapshot(exact)) < 0.3 * distance(snapshot(exact), start)
    (state,) = rounded.optimizer.state.values()
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8


@pytest.mark.parametrize(("stage", "dtype", "keys"), WAYS)
def test_a_checkpoint_continues_as_if_nothing_had_happened(tiny_model, tmp_path, stage, dtype, keys):
    engine = make_engine(tiny_model, stage, dtype, **keys)
    take_steps(engine, 2)
    saver = Checkpointer(tmp_path, engine, tiny_model)
    saver.save(2, {})
    saver.wait()
    expected = take_steps(engine)
    other = make_engine(tiny_model, stage, dtype, **keys)
    Checkpointer(tmp_path, other, tiny_model).load(checkpoint_path(tmp_path, 2))
    assert worst(take_steps(other), expected) == 0
    assert worst(gather_state(other), gather_state(engine)) == 0


def test_what_was_in_8_bits_gets_its_codes_again():
    optimizer = bnb_optim.AdamW8bit([torch.nn.Parameter(torch.zeros(1))])
    optimizer.fill_qmap()
    values = optimizer.name2qmap
    generator = torch.Generator().manual_seed(0)
    for name in ("dynamic", "udynamic"):
        levels = values[name]
        tensor = torch.randn(1000, generator=generator) * torch.logspace(-9, 0, 1000)
        tensor = tensor if float(levels[0]) < 0 else tensor.abs()
        codes, scales = bnb_functional.quantize_blockwise(tensor, code=levels, blocksize=256)
        rounded = bnb_functional.dequantize_blockwise(codes, absmax=scales.absmax, code=levels, blocksize=256)
        again, found = eight_bits.to_8_bits(rounded, levels)
        assert torch.equal(again, codes)
        torch.testing.assert_close(found, scales.absmax, atol=0, rtol=2e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_offloading_changes_only_the_rounding_of_the_norm(tiny_model, offload, dtype):
    kept = make_engine(tiny_model, 3, dtype)
    away = make_engine(tiny_model, 3, dtype, offload=offload)
    good = [g for g in batch_of_groups() if g.task.id != "t1"]
    batch = build_step_batch([*good, group("t1", [1e30, -1e30, 1e30, 0.0])], 0, 0)
    for engine in (kept, away):
        # With a gradient that is thrown away, and more than one micro-batch a step.
        assert list(step_once(engine, 60, batch, preset="dr_grpo").left_out) == [1]
        step_once(engine, 60)
    assert worst(snapshot(away), snapshot(kept)) < 1e-7
    assert worst(gather_state(away), gather_state(kept)) < 1e-7


def test_deepspeed_is_told_what_to_offload():
    def zero(offload):
        train = TrainConfig(zero_stage=3, offload=offload)
        return deepspeed_config(train, "bfloat16", 1000)["zero_optimization"]

    place = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    assert "offload_optimizer" not in zero("none") and "offload_param" not in zero("none")
    assert zero("optimizer")["offload_optimizer"] == place and "offload_param" not in zero("optimizer")
    assert zero("parameters")["offload_optimizer"] == zero("parameters")["offload_param"] == place


def test_only_what_is_trained_has_an_optimizer(tiny_model):
    policy = load_policy(tiny_model, "float32").requires_grad_(False)
    policy.model.model.norm.weight.requires_grad_(True)
    for name in ("adamw", "muon", "adamw_8bit"):
        optimizer = make_optimizer(TrainConfig(optimizer=name), policy.named_parameters())
        assert [p for g in optimizer.param_groups for p in g["params"]] == [policy.model.model.norm.weight]
