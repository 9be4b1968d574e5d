"""Real runs with what large models need, from start to evaluation, through a kill and a resume."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.config import load_config
from asyncrl.launch.models.base_model import base_model_key
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.run.metrics import read_metrics
from tests.models import save_experts
from tests.runs import CACHE, STEPS, end_started, kill_launcher, resume, start, wait_for_step

# Whole runs: each wait has its own deadline, and this one is for a machine that is slow altogether.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TOLERANCE = 1e-4
EXPERTS = (
    'train.schedule="one_step_off"', "train.router_replay=true", 'train.optimizer="muon"', "train.ranks=2",
    "train.sequence_parallel=2", "train.zero_stage=3", 'train.offload="optimizer"', "train.gradient_checkpointing=true",
    "train.offload_activations=true", "rollout.max_tokens_per_turn=24", 'env.name="tests.letters:Letters"',
)  # fmt: skip
EIGHT_BITS = ('engine.quantization="int8"', 'train.optimizer="adamw_8bit"', "train.num_steps=4")


@pytest.fixture(autouse=True)
def spawned():
    """Processes end when the test has ended, however it did."""
    yield
    end_started()


def change(run, base):
    """The largest difference of any weight of a run's last checkpoint from those of the model it began with."""
    version, path = complete_checkpoints(run / "checkpoints")[0]
    trained = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    before = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).state_dict()
    assert version == read_metrics(run)[-1]["step"]
    return {name: float((trained[name] - before[name]).abs().max()) for name in before}


def check_records(run, steps, tolerance):
    """Every step is there once, its loss is a number, and its tokens are those that the engine said they are."""
    records = read_metrics(run)
    assert [record["step"] for record in records] == list(range(1, steps + 1))
    assert all(math.isfinite(record["loss/total"]) for record in records)
    assert any(record["grad_norm"] > 0 for record in records)
    # Those of version 0, which is never published, can be in the first two steps.
    assert [one["logprob_check/tokens"] for one in records[2:]] == [
        one["tokens/trained"] for one in records[2:]
    ]
    assert max(record["logprob_check/worst_token"] for record in records) < tolerance
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == steps
    return summary


def test_experts_under_zero_3_are_trained_as_the_engine_routed_them_and_go_on_after_a_kill(
    workplace, tiny_model, monkeypatch
):
    model = workplace / "experts"
    policy, tokenizer = save_experts("mixtral", model), AutoTokenizer.from_pretrained(tiny_model)
    with torch.no_grad():
        # So that some episodes end by themselves: those that are cut earn nothing.
        policy.get_input_embeddings().weight[:, 0] += 1
        policy.lm_head.weight[tokenizer.eos_token_id, 0] += 7
    policy.save_pretrained(model)
    tokenizer.save_pretrained(model)
    run = workplace / "runs" / "experts"
    # Who starts it may be a rank of something else.
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    process = start(workplace, run.name, f'model.path="{model}"', *EXPERTS, "eval.tasks=8")
    wait_for_step(run, 5, process)
    kill_launcher(run, process)
    resume(workplace, run)

    summary = check_records(run, STEPS, TOLERANCE)
    (resumed,) = re.findall(r"resuming at version (\d+) of", (run / "logs" / "trainer.log").read_text())
    assert 2 <= int(resumed) <= 5
    assert summary["lives"] == 2
    assert (summary["eval_before"]["tasks"], summary["eval_after"]["tasks"]) == (8, 8)
    changes = change(run, model)
    assert min(changes[name] for name in changes if ".experts." in name or ".gate." in name) > 1e-4
    _, checkpoint = complete_checkpoints(run / "checkpoints")[0]
    assert len(list(checkpoint.glob("model-*-of-00002.safetensors"))) == 2
    parts = [load_file(path) for path in sorted((checkpoint / "training_state").glob("*.safetensors"))]
    sizes = [sum(tensor.numel() for tensor in part.values()) for part in parts]
    # Each rank's half of master weights, and of momenta in place of AdamW's two moments for matrices.
    assert len(parts) == 2 and 0.8 < sizes[0] / sizes[1] < 1.25


def test_eight_bits_in_the_engine_are_those_of_the_trainer_and_of_its_optimizer(workplace):
    run = workplace / "runs" / "bits"
    process = start(workplace, run.name, *EIGHT_BITS)
    assert process.wait(400) == 0, (workplace / "bits.err").read_text()
    # Rounding to eight bits decides some numbers by the last bit of float32.
    check_records(run, 4, 0.05)
    assert max(record["logprob_check/error"] for record in read_metrics(run)) < 1e-3
    base = Path(CACHE) / "base_models" / base_model_key(load_config(workplace / "recipe.toml"))
    assert max(change(run, base).values()) > 1e-4
