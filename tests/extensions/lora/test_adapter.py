"""An adapter: what is trained, what the reference is, what is saved, on any ranks and ZeRO stage."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncrl.config import override_config, parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.lora.adapter import adapters
from asyncrl.train.engine.full_state import WholeTensors, gather_state, load_state
from asyncrl.train.models.checkpoint_form import published
from asyncrl.train.models.loading import load_frozen, load_policy
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from tests.packages import ImportedWhenUsed
from tests.train.factories import batch_of_groups
from tests.train.one_step import save_policy, snapshot
from tests.train.one_step_lora import LORA, adapted, two_steps

peft = ImportedWhenUsed("peft")
ROOT = Path(__file__).parents[3]
ROWS = pad_rows(build_step_batch(batch_of_groups(), 0, 0), range(12))


@pytest.fixture(scope="module")
def trained(tiny_model):
    return two_steps(tiny_model)


@torch.no_grad()
def logp(model):
    return model(ROWS.token_ids, ROWS.mask, 1.0)["logp"]


@torch.no_grad()
def full_logp(model):
    """Log-probabilities [B,T] of the sampled tokens by a plain forward pass."""
    found = torch.log_softmax(model(input_ids=ROWS.token_ids).logits[:, :-1].float(), -1)
    found = found.gather(-1, ROWS.token_ids[:, 1:, None].long())[..., 0]
    return torch.nn.functional.pad(found, (1, 0)) * ROWS.mask


def worst(one, other):
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).detach().abs().max()) for name in one)


def test_a_fresh_adapter_changes_nothing(tiny_model):
    learner = adapted(tiny_model)
    assert torch.equal(logp(learner.engine.engine.module), logp(load_frozen(tiny_model, "float32")))


def test_a_step_changes_the_adapter_and_nothing_else(tiny_model, trained):
    base = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    kept = {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in trained.engine.engine.module.model.named_parameters()
        if "lora_" not in name
    }
    assert worst(base, kept) == 0.0
    assert all(tensor.abs().max() > 0 for tensor in snapshot(trained.engine).values())
    assert not torch.allclose(
        logp(trained.engine.engine.module), logp(load_frozen(tiny_model, "float32")), atol=1e-4
    )


def test_what_is_published_is_the_adapter_alone_under_the_names_of_peft(trained):
    names = list(snapshot(trained.engine))
    assert len(names) == 2 * 2 * 7
    assert names[0] == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    full = sum(p.numel() for p in trained.engine.engine.module.parameters())
    assert sum(t.numel() for t in snapshot(trained.engine).values()) < full / 4


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_the_reference_without_a_copy_gives_what_a_copy_of_the_base_model_gives(tiny_model, zero_stage):
    bare = two_steps(tiny_model, zero_stage)
    copied = two_steps(tiny_model, zero_stage, reference={"path": tiny_model})
    assert type(bare.auxiliary.parts["reference"].policy).__name__ == "BasePolicy"
    assert worst(snapshot(bare.engine), snapshot(copied.engine)) < 1e-6
    found = bare.auxiliary.parts["reference"].policy.outputs(bare.engine, ROWS.token_ids, ROWS.mask, 1.0, ())[
        "logp"
    ]
    torch.testing.assert_close(found, logp(load_frozen(tiny_model, "float32")), atol=1e-6, rtol=0)


def test_a_refreshed_reference_and_averaged_or_past_policies_start_as_the_policy_and_follow_it(tiny_model):
    refreshed = adapted(tiny_model, reference={"refresh_every": 1})
    refreshed.step()
    assert torch.equal(
        logp(refreshed.auxiliary.parts["reference"].policy.model), logp(refreshed.engine.engine.module)
    )
    averaged = adapted(tiny_model, algo={"preset": "ppo_ewma"}).auxiliary.parts["average"]
    past = adapted(tiny_model, algo={"preset": "grpo", "proximal": {"name": "snapshot"}})
    policy = adapted(tiny_model).engine
    assert worst(dict(published(averaged.model.model)), snapshot(policy)) == 0.0
    assert worst(dict(published(past.auxiliary.parts["snapshots"].load(0).model)), snapshot(policy)) == 0.0


def test_a_value_head_on_the_trunk_is_trained_with_the_adapter(tiny_model):
    learner = adapted(tiny_model, algo={"preset": "ppo", "value": {"trunk": "shared"}})
    before = learner.engine.engine.module.value_head.weight.detach().clone()
    adapter = snapshot(learner.engine)
    learner.step()
    assert not torch.equal(learner.engine.engine.module.value_head.weight, before)
    assert worst(snapshot(learner.engine), adapter) > 0


def test_a_checkpoint_holds_the_merged_model_and_an_adapter_that_peft_loads(tiny_model, trained, tmp_path):
    folder = save_policy(trained.engine, tmp_path / "step-000002", tiny_model)
    expected = logp(trained.engine.engine.module)
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(full_logp(merged), expected, atol=1e-5, rtol=0)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, folder / "adapter")
    torch.testing.assert_close(full_logp(loaded), expected, atol=1e-5, rtol=0)


def test_an_adapter_names_its_base_so_that_transformers_loads_it_from_any_folder(
    tiny_model, trained, tmp_path, monkeypatch
):
    monkeypatch.chdir(Path(tiny_model).parent)
    folder = save_policy(trained.engine, tmp_path / "step-000002", Path(tiny_model).name)
    monkeypatch.chdir(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(folder / "adapter", dtype=torch.float32)
    torch.testing.assert_close(full_logp(loaded), logp(trained.engine.engine.module), atol=1e-5, rtol=0)


def test_a_checkpoint_under_zero_3_is_the_one_of_stage_0(tiny_model, trained, tmp_path):
    one = save_policy(trained.engine, tmp_path / "a", tiny_model)
    other = save_policy(two_steps(tiny_model, 3).engine, tmp_path / "b", tiny_model)
    for file in ("model.safetensors", "adapter/adapter_model.safetensors"):
        # An ulp of a gradient near 0 decides much of Adam's first step, so CPUs differ.
        assert worst(load_file(one / file), load_file(other / file)) < 1e-5


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_a_saved_state_continues_equally_under_any_zero_stage(tiny_model, zero_stage):
    first = two_steps(tiny_model)
    state = gather_state(first.engine)
    first.step()
    again = adapted(tiny_model, zero_stage)
    load_state(again.engine, WholeTensors(state))
    again.step()
    assert worst(snapshot(again.engine), snapshot(first.engine)) < 1e-6


def test_layers_that_the_model_does_not_have_are_refused_by_name(tiny_model):
    lora = parse_config(
        {
            "model": {"path": "m"},
            "env": {"name": "gridworld"},
            "lora": {"rank": 2, "target_modules": ["q_proj", "wq"]},
        }
    ).lora
    with pytest.raises(ConfigError, match="no linear layer 'wq'; allowed: down_proj, gate_proj, k_proj"):
        load_policy(tiny_model, "float32", changes=adapters(lora, 0))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"lora": {"rank": 2, "target_modules": ["lm_head"]}},
            "inside the transformer blocks, not 'lm_head'",
        ),
        (
            {"lora": {"rank": 2}, "engine": {"weight_transfer": "collective"}},
            "must be 'shared_file', 'http' or 'nixl' where lora.rank",
        ),
        ({"lora": {"rank": 513}}, "lora.rank"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(sections, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **sections})


def test_a_resumed_run_keeps_its_adapter():
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, "lora": LORA})
    with pytest.raises(ConfigError, match="lora cannot change while a run goes on"):
        override_config(config, ["lora.rank=8"])


@pytest.fixture(scope="module")
def pair(tiny_model, two_ranks, tmp_path_factory):
    """The adapters that two ranks trained, by ZeRO stage."""
    out = tmp_path_factory.mktemp("ranks")
    two_ranks.call("tests.train.one_step_lora", tiny_model, str(out), "0", "1", "3")
    return out


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_two_ranks_train_as_one(trained, pair, zero_stage):
    assert worst(load_file(pair / f"{zero_stage}.safetensors"), snapshot(trained.engine)) < 1e-5
