"""Preferences over pairs: numbers worked out by hand, rows of pairs, and what a training on them does."""

import json
import math

import numpy as np
import pytest
import torch

from asyncrl.config_sections import DataConfig, SftConfig
from asyncrl.errors import ConfigError, InputError
from asyncrl.rows.data import open_data
from asyncrl.train.supervised.objectives import make_objective
from asyncrl.train.supervised.pairs import Pairs
from asyncrl.train.supervised.run import REFERENCE, train_supervised
from tests.train.supervised.test_run import steps_of, weights_of, write_run

WORDS = ("north", "east", "south", "west")


def opened(path, rows):
    path.mkdir(exist_ok=True)
    file = path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_data(DataConfig.model_validate({"train": str(file), "heldout_share": 0.0})).train[0]


def test_dpo_and_ipo_of_two_pairs_are_those_worked_out_by_hand():
    # Answers of -3 and -5, -4 and -1 nats; the reference had -4, -4, -2, -2: z is 2 and -3.
    logp = torch.tensor([[0.0, -1.0, -2.0], [0.0, -5.0, 0.0], [-4.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    reference = torch.tensor([-4.0, -4.0, -2.0, -2.0])
    loss, more = make_objective("dpo", 0.5).sums(logp, reference)
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-1.0)) + math.log(1 + math.exp(1.5)), abs=1e-6)
    assert (float(more["accuracy"]), float(more["margin"])) == (1.0, -0.5)
    loss, _ = make_objective("ipo", 0.5).sums(logp, reference)
    assert float(loss) == pytest.approx((2 - 1) ** 2 + (-3 - 1) ** 2)
    assert float(make_objective("likelihood", 0.5).sums(logp, reference)[0]) == 13.0


def test_a_pass_without_pairs_has_a_loss_of_0_that_reaches_the_weights():
    weight = torch.ones((), requires_grad=True)
    loss, _ = make_objective("dpo", 0.1).sums(torch.zeros(1, 2) * weight, torch.zeros(1))
    loss.backward()
    assert (float(loss), float(weight.grad)) == (0.0, 0.0)


def test_texts_follow_the_prompt_and_conversations_share_what_they_begin_with(tmp_path):
    texts = Pairs(opened(tmp_path / "a", [{"prompt": "q", "chosen": "yes", "rejected": "no"}]))
    pair = texts.first()
    assert [m["content"] for m in pair.chosen.messages] == ["q", "yes"]
    assert [m["content"] for m in pair.rejected.messages] == ["q", "no"]
    shared = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "r"},
    ]
    talks = [[*shared, {"role": "assistant", "content": said}] for said in ("yes", "no")]
    pair = Pairs(opened(tmp_path / "b", [{"prompt": "q", "chosen": talks[0], "rejected": talks[1]}])).first()
    # The answer that both have is read, and not learned.
    assert [m.get("weight") for m in pair.chosen.messages] == [None, 0, None, None]
    assert pair.rejected.messages[-1] == {"role": "assistant", "content": "no"}


def test_rows_that_are_no_pairs_are_refused_by_their_line(tmp_path):
    same = {"prompt": "q", "chosen": "yes", "rejected": "yes"}
    with pytest.raises(
        InputError, match=r"pairs.jsonl, line 1: chosen: has no answer that the other column has not"
    ):
        list(Pairs(opened(tmp_path / "a", [same])))
    with pytest.raises(InputError, match=r"pairs.jsonl, line 1: rejected: is empty"):
        list(Pairs(opened(tmp_path / "b", [same | {"rejected": " "}])))
    with pytest.raises(ConfigError, match=r"sft.objective: needs a column 'rejected', which .* has not"):
        Pairs(opened(tmp_path / "c", [{"prompt": "q", "chosen": "yes"}]))


@pytest.mark.parametrize(
    "given", [{"packing": True}, {"completion": "x"}, {"min_reward": 1.0}, {"data": "scripted"}]
)
def test_settings_that_say_nothing_of_pairs_are_refused(given):
    (key,) = given
    with pytest.raises(ValueError, match=f"{key}: must be left out for objective='dpo'"):
        SftConfig(objective="dpo", **given)


@pytest.fixture
def pairs(tmp_path):
    rows = [
        {"prompt": f"goal {WORDS[i % 4]} {i}", "chosen": WORDS[i % 4], "rejected": WORDS[(i + 1) % 4]}
        for i in range(16)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_the_model_comes_to_prefer_what_is_chosen_from_a_loss_of_log_2_on(tiny_model, tmp_path, pairs):
    sft = {"objective": "dpo", "steps": 8, "batch_size": 8, "learning_rate": 3e-3, "lr_schedule": "constant"}
    run = write_run(tmp_path / "run", tiny_model, {"train": pairs}, sft)
    train_supervised(run)
    steps = steps_of(run)
    # At first the model is its own reference.
    assert steps[1]["sft/loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert steps[1]["sft/margin"] == pytest.approx(0.0, abs=1e-5)
    assert steps[8]["sft/loss"] < 0.6
    assert steps[8]["sft/margin"] > 0
    assert steps[8]["sft/accuracy"] > 0.5


def test_a_resumed_training_has_the_reference_of_the_first_launch(tiny_model, tmp_path, pairs):
    sft = {"objective": "dpo", "steps": 4, "batch_size": 8, "checkpoint_every": 2, "lr_schedule": "constant"}
    whole = train_supervised(write_run(tmp_path / "whole", tiny_model, {"train": pairs}, sft))
    run = tmp_path / "resumed"
    train_supervised(write_run(run, tiny_model, {"train": pairs}, sft | {"steps": 2}))
    (run / REFERENCE).unlink()
    resumed = train_supervised(write_run(run, tiny_model, {"train": pairs}, sft))
    np.testing.assert_array_equal(np.load(run / REFERENCE), np.load(tmp_path / "whole" / REFERENCE))
    expected, found = weights_of(whole), weights_of(resumed)
    assert all(torch.equal(t, found[file][name]) for file, one in expected.items() for name, t in one.items())
