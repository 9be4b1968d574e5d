"""The first steps on SmolLM2-135M are those of TRL 1.16's SFTTrainer.

What TRL computed stands in `trl_steps.json`, by `trl_steps.py`. The model is the one that `asyncrl models get` makes;
it is looked for in the cache, or where ASYNCRL_TEST_SMOLLM2 says, and not fetched.
"""

import json
import os
from pathlib import Path

import pytest

from asyncrl.chat.renderer import load_renderer
from asyncrl.config import TrainConfig
from asyncrl.config_sections import SftConfig
from asyncrl.run.folder import cache_folder
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.demonstrations import Demonstration
from asyncrl.train.policy import load_policy
from asyncrl.train.supervised.examples import Schedule, encode_rows, pack
from asyncrl.train.supervised.trainer import SupervisedTrainer
from tests.train.supervised.talks import APART, BETAS, LEARNING_RATE, PACKED, PACKED_LENGTH, STEPS, talks

MODEL = Path(os.environ.get("ASYNCRL_TEST_SMOLLM2") or cache_folder() / "models" / "smollm2-135m")
COMPUTED = json.loads(Path(__file__).with_name("trl_steps.json").read_text())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (MODEL / "config.json").exists(),
        reason=f"{MODEL} is not there (asyncrl models get smollm2-135m); ASYNCRL_TEST_SMOLLM2 may name it",
    ),
]


@pytest.mark.parametrize("kind", COMPUTED)
def test_loss_and_gradient_norm_of_the_first_steps_are_trls(kind):
    renderer = load_renderer(str(MODEL))
    rows = encode_rows(renderer, [("", Demonstration(talk, [], 0.0)) for talk in talks()], 1024).rows
    lengths = [len(row.ids) for row in rows]
    bins = pack(lengths, PACKED_LENGTH) if kind == "packed" else [[row] for row in range(len(rows))]
    schedule = Schedule(bins, PACKED if kind == "packed" else APART, steps=STEPS, shuffle=False)
    settings = SftConfig(learning_rate=LEARNING_RATE, lr_schedule="constant")
    train = TrainConfig(learning_rate=LEARNING_RATE, betas=BETAS, zero_stage=0)
    engine = TrainEngine(load_policy(str(MODEL), "float32"), train, "float32")
    trainer = SupervisedTrainer(engine, rows, [], schedule, settings, 16384)
    for step, (loss, norm) in enumerate(COMPUTED[kind]):
        found = trainer.step(step)
        assert found["sft/loss"] == pytest.approx(loss, abs=1e-4), f"loss of step {step + 1}"
        assert found["sft/grad_norm"] == pytest.approx(norm, abs=1e-4, rel=1e-4), f"norm of step {step + 1}"
