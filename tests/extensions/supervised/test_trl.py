"""The first steps on SmolLM2-135M are those of TRL 1.16's SFTTrainer, DPOTrainer and KTOTrainer, and on a small model
those of the last two.

What TRL computed stands in `trl_steps.json`, by `trl_steps.py`. SmolLM2 is the one that `asyncrl models get` makes; it
is looked for in the cache, or where ASYNCRL_TEST_SMOLLM2 says, and not fetched. The small model is made on the spot.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.cache import cache_folder
from asyncrl.chat.renderer import load_renderer
from asyncrl.config import TrainConfig
from asyncrl.config_sections import SftConfig
from asyncrl.extensions.supervised.conversations import WEIGHT
from asyncrl.extensions.supervised.demonstrations import Demonstration
from asyncrl.extensions.supervised.examples import (
    Examples,
    Schedule,
    encode_pairs,
    encode_rows,
    encode_verdicts,
    pack,
)
from asyncrl.extensions.supervised.pairs import Pair
from asyncrl.extensions.supervised.trainer import Facts, SupervisedTrainer
from asyncrl.extensions.supervised.verdicts import Verdict
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.loading import load_policy
from tests.extensions.supervised.talks import (
    APART,
    BETA,
    BETAS,
    PACKED,
    PACKED_LENGTH,
    PAIRS,
    SMOLLM2_PAIRS,
    SMOLLM2_VERDICTS,
    STEPS,
    VERDICTS,
    pairs,
    save_small,
    sums,
    talks,
    verdicts,
)

MODEL = Path(os.environ.get("ASYNCRL_TEST_SMOLLM2") or cache_folder() / "models" / "smollm2-135m")
COMPUTED = json.loads(Path(__file__).with_name("trl_steps.json").read_text())
RATES = COMPUTED["learning_rate"]

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
    settings = SftConfig(learning_rate=RATES[kind], lr_schedule="constant")
    compare(SupervisedTrainer(make_engine(MODEL, RATES[kind]), rows, [], schedule, settings, 16384), kind)


@needs_smollm2
@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_preferences_loss_and_gradient_norm_of_the_first_steps_are_trls(kind):
    if kind not in COMPUTED:
        pytest.skip(f"trl_steps.json has no numbers of {kind} on SmolLM2; trl_steps.py computes them")
    batch_size = SMOLLM2_VERDICTS if kind == "kto" else SMOLLM2_PAIRS
    compare(preferring(kind, MODEL, sums(STEPS * batch_size), batch_size, RATES[kind]), kind)


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_preferences_loss_and_gradient_norm_of_a_small_model_are_trls(kind, tmp_path):
    batch_size = VERDICTS if kind == "kto" else PAIRS
    model = save_small(tmp_path / "small")
    trainer = preferring(kind, model, talks(STEPS * batch_size), batch_size, RATES[f"small_{kind}"])
    compare(trainer, f"small_{kind}")


def preferring(kind, model, talked, batch_size, learning_rate):
    """Return a trainer on the pairs or verdicts of conversations, in their order."""
    renderer = load_renderer(str(model))
    settings = SftConfig(objective=kind, beta=BETA, learning_rate=learning_rate, lr_schedule="constant")
    found = (
        encoded_verdicts(renderer, talked, batch_size) if kind == "kto" else encoded_pairs(renderer, talked)
    )
    bins = [[row, row + 1] for row in range(0, len(found.rows), 2)]
    schedule = Schedule(bins, batch_size, steps=STEPS, shuffle=False)
    trainer = SupervisedTrainer(make_engine(model, learning_rate), found.rows, [], schedule, settings, 16384)
    marks = trainer.facts.marks if found.marks is None else found.marks
    trainer.facts = Facts(trainer.measure_reference(found.rows), marks)
    return trainer


def encoded_pairs(renderer, talked):
    both = [
        Pair(*(Demonstration([*read(row["prompt"]), *row[kind]], [], 0.0) for kind in ("chosen", "rejected")))
        for row in pairs(talked)
    ]
    return encode_pairs(renderer, [("", pair) for pair in both], 256)


def encoded_verdicts(renderer, talked, batch_size):
    """TRL takes answers to other prompts from the same step, so each step's rows are encoded alone."""
    given = [
        Verdict(Demonstration([*read(row["prompt"]), *row["completion"]], [], 0.0), row["label"])
        for row in verdicts(talked)
    ]
    steps = [
        encode_verdicts(renderer, [("", one) for one in given[first : first + batch_size]], 256)
        for first in range(0, len(given), batch_size)
    ]
    marks = np.concatenate([one.marks for one in steps])
    return Examples([row for one in steps for row in one.rows], 0, marks)


def read(prompt):
    """Mark the prompt's own answers as read, as rows of preferences are."""
    return [m | {WEIGHT: 0} if m["role"] == "assistant" else m for m in prompt]


def make_engine(model, learning_rate):
    train = TrainConfig(learning_rate=learning_rate, betas=BETAS, zero_stage=0)
    return TrainEngine(load_policy(str(model), "float32"), train, "float32")


def compare(trainer, name):
    rel = 1e-4
    if name in COMPUTED["summed_in_float32"]:
        # Two sums that lose a part of what they add agree less well.
        rel = 3e-4
        sum_as_torch_does(trainer.engine)
    for step, (loss, norm) in enumerate(COMPUTED[name]):
        found = trainer.step(step)
        assert found["sft/loss"] == pytest.approx(loss, abs=1e-4), f"loss of step {step + 1}"
        assert found["sft/grad_norm"] == pytest.approx(norm, abs=1e-4, rel=rel), f"norm of step {step + 1}"


def sum_as_torch_does(engine):
    """Have an engine tell the norm that torch finds of its gradients."""
    take = engine.step

    def step(learning_rate):
        parameters = engine.engine.module.parameters()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        take(learning_rate)
        return float(norm)

    engine.step = step
