"""The first steps on SmolLM2-135M are those of TRL 1.16's SFTTrainer, and on a small model those of its DPOTrainer.

What TRL computed stands in `trl_steps.json`, by `trl_steps.py`. SmolLM2 is the one that `asyncrl models get` makes; it
is looked for in the cache, or where ASYNCRL_TEST_SMOLLM2 says, and not fetched. The small model is made on the spot.
"""

import json
import os
from pathlib import Path

import pytest

from asyncrl.chat.renderer import load_renderer
from asyncrl.config import TrainConfig
from asyncrl.config_sections import SftConfig
from asyncrl.run.folder import cache_folder
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.loading import load_policy
from asyncrl.train.supervised.conversations import WEIGHT
from asyncrl.train.supervised.demonstrations import Demonstration
from asyncrl.train.supervised.examples import Schedule, encode_pairs, encode_rows, pack
from asyncrl.train.supervised.pairs import Pair
from asyncrl.train.supervised.trainer import Facts, SupervisedTrainer
from tests.train.supervised.talks import (
    APART,
    BETA,
    BETAS,
    LEARNING_RATE,
    PACKED,
    PACKED_LENGTH,
    PAIRS,
    SMALL_LEARNING_RATE,
    STEPS,
    pairs,
    save_small,
    talks,
)

MODEL = Path(os.environ.get("ASYNCRL_TEST_SMOLLM2") or cache_folder() / "models" / "smollm2-135m")
COMPUTED = json.loads(Path(__file__).with_name("trl_steps.json").read_text())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

needs_smollm2 = pytest.mark.skipif(
    not (MODEL / "config.json").exists(),
    reason=f"{MODEL} is not there (asyncrl models get smollm2-135m); ASYNCRL_TEST_SMOLLM2 may name it",
)


@needs_smollm2
@pytest.mark.parametrize("kind", ["apart", "packed"])
def test_loss_and_gradient_norm_of_the_first_steps_are_trls(kind):
    renderer = load_renderer(str(MODEL))
    rows = encode_rows(renderer, [("", Demonstration(talk, [], 0.0)) for talk in talks()], 1024).rows
    lengths = [len(row.ids) for row in rows]
    bins = pack(lengths, PACKED_LENGTH) if kind == "packed" else [[row] for row in range(len(rows))]
    schedule = Schedule(bins, PACKED if kind == "packed" else APART, steps=STEPS, shuffle=False)
    settings = SftConfig(learning_rate=LEARNING_RATE, lr_schedule="constant")
    trainer = SupervisedTrainer(make_engine(MODEL, LEARNING_RATE), rows, [], schedule, settings, 16384)
    # Rounding in another order grows from step to step; it is largest beside small norms.
    compare(trainer, COMPUTED[kind], rel=3e-4)


def test_dpos_loss_and_gradient_norm_of_the_first_steps_are_trls(tmp_path):
    model = save_small(tmp_path / "small")
    renderer = load_renderer(model)
    both = [
        Pair(*(Demonstration([*row["prompt"], *row[kind]], [], 0.0) for kind in ("chosen", "rejected")))
        for row in map(_read, pairs())
    ]
    rows = encode_pairs(renderer, [("", pair) for pair in both], 256).rows
    bins = [[row, row + 1] for row in range(0, len(rows), 2)]
    settings = SftConfig(
        objective="dpo", beta=BETA, learning_rate=SMALL_LEARNING_RATE, lr_schedule="constant"
    )
    trainer = SupervisedTrainer(
        make_engine(model, SMALL_LEARNING_RATE), rows, [],
        Schedule(bins, PAIRS, steps=STEPS, shuffle=False), settings, 16384,
    )  # fmt: skip
    trainer.facts = Facts(trainer.measure_reference(rows), trainer.facts.marks)
    compare(trainer, COMPUTED["small_dpo"])


def _read(row):
    """Mark the prompt's own answers as read, as rows of pairs are."""
    return row | {"prompt": [m | {WEIGHT: 0} if m["role"] == "assistant" else m for m in row["prompt"]]}


def make_engine(model, learning_rate):
    train = TrainConfig(learning_rate=learning_rate, betas=BETAS, zero_stage=0)
    return TrainEngine(load_policy(str(model), "float32"), train, "float32")


def compare(trainer, computed, rel=1e-4):
    for step, (loss, norm) in enumerate(computed):
        found = trainer.step(step)
        assert found["sft/loss"] == pytest.approx(loss, abs=1e-4), f"loss of step {step + 1}"
        assert found["sft/grad_norm"] == pytest.approx(norm, abs=1e-4, rel=rel), f"norm of step {step + 1}"
