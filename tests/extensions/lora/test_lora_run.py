"""A real run that trains an adapter, with an old-policy process: the engine's log-probabilities are the trainer's and
that process's, also after the launcher was killed and the run goes on."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.config import load_config
from asyncrl.launch.models.base_model import base_model_key
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.run.metrics import read_metrics
from tests.packages import ImportedWhenUsed
from tests.runs import CACHE, check_trained_once, kill_launcher, resume, start, wait_for_step

peft = ImportedWhenUsed("peft")
pytestmark = pytest.mark.slow
OLD_POLICY = ('algo.preset="grpo"', 'algo.proximal="snapshot"', 'train.old_policy="process"')


def test_an_adapter_is_trained_served_and_saved_and_goes_on_after_a_kill(workplace):
    run = workplace / "runs" / "adapter"
    process = start(
        workplace, run.name, "lora.rank=4", "lora.alpha=8", "engine.weight_transfer=http", *OLD_POLICY
    )
    wait_for_step(run, 5, process)
    kill_launcher(run, process)
    resume(workplace, run)
    check_trained_once(run)
    records = read_metrics(run)
    assert max(record["logprob_check/error"] for record in records) < 1e-4
    # What the old-policy process says of every token, under its own version, is what the engine said.
    assert max(abs(record["split/engine_kl"]) for record in records) < 1e-4
    assert any(record["lag/mean"] > 0 for record in records)
    _, checkpoint = complete_checkpoints(run / "checkpoints")[0]
    merged = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    base = Path(CACHE) / "base_models" / base_model_key(load_config(workplace / "recipe.toml"))
    adapted = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), checkpoint / "adapter"
    )
    ids = torch.arange(10, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, atol=1e-4, rtol=0)
        with adapted.disable_adapter():
            assert (adapted(ids).logits - merged(ids).logits).abs().max() > 1e-3
