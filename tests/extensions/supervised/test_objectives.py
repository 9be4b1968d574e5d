"""Preferences: numbers worked out by hand, rows of pairs and of verdicts, and what a training on them does."""

import json
import math

import numpy as np
import pytest
import torch

from asyncrl.algo.loss.preference import kto_drift
from asyncrl.chat.renderer import load_renderer
from asyncrl.config_sections import DataConfig, SftConfig
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.examples import encode_verdicts
from asyncrl.extensions.supervised.objectives import make_objective
from asyncrl.extensions.supervised.pairs import Pairs
from asyncrl.extensions.supervised.run import REFERENCE, train_supervised
from asyncrl.extensions.supervised.verdicts import Verdicts
from asyncrl.rows.data import open_data
from tests.extensions.supervised.test_run import steps_of, weights_of, write_run

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
    rest = (torch.zeros(4), torch.zeros(()))
    loss, more = make_objective("dpo", 0.5).sums(logp, reference, *rest)
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-1.0)) + math.log(1 + math.exp(1.5)), abs=1e-6)
    assert (float(more["accuracy"]), float(more["margin"])) == (1.0, -0.5)
    loss, _ = make_objective("ipo", 0.5).sums(logp, reference, *rest)
    assert float(loss) == pytest.approx((2 - 1) ** 2 + (-3 - 1) ** 2)
    assert float(make_objective("likelihood", 0.5).sums(logp, reference, *rest)[0]) == 13.0


def test_a_pass_without_pairs_has_a_loss_of_0_that_reaches_the_weights():
    weight = torch.ones((), requires_grad=True)
    loss, _ = make_objective("dpo", 0.1).sums(
        torch.zeros(1, 2) * weight, torch.zeros(1), torch.zeros(1), torch.zeros(())
    )
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


def test_kto_of_three_answers_is_that_worked_out_by_hand():
    # Two desirable answers whose log-probabilities rose by 2 and fell by 1, another that rose by 3; the drift is 1.
    logp = torch.tensor([[0.0, -1.0, -2.0], [0.0, -5.0, 0.0], [-4.0, 0.0, 0.0]])
    reference = torch.tensor([-5.0, -4.0, -7.0])
    marks = torch.tensor([0.75, 0.75, -1.5])
    loss, more = make_objective("kto", 0.5).sums(logp, reference, marks, torch.tensor(1.0))

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    expected = 0.75 * (1 - sigmoid(0.5)) + 0.75 * (1 - sigmoid(-1.0)) + 1.5 * (1 - sigmoid(-1.0))
    assert float(loss) == pytest.approx(expected, abs=1e-6)
    assert (float(more["accuracy"]), float(more["margin"])) == (1.0, 0.5 * (1 - 2 - 2))


def test_the_drift_is_the_mean_gain_and_never_below_0():
    assert float(kto_drift(torch.tensor([3.0, -1.0]))) == 1.0
    assert float(kto_drift(torch.tensor([-3.0, 1.0]))) == 0.0


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def verdicts(tmp_path):
    rows = [
        {
            "prompt": f"goal {WORDS[i % 4]} {i}",
            "completion": WORDS[(i + i % 3 % 2) % 4],
            "label": i % 3 != 1,
        }
        for i in range(18)
    ]
    return written(tmp_path / "verdicts.jsonl", rows)


def test_each_verdict_has_a_row_with_the_answer_of_the_row_before(tiny_model, verdicts):
    part = open_data(DataConfig.model_validate({"train": verdicts, "heldout_share": 0.0})).train[0]
    renderer = load_renderer(tiny_model)
    found = encode_verdicts(renderer, Verdicts(part), 64)
    assert len(found.rows) == 36
    # 12 of 18 are desirable: both kinds weigh 9 in sum.
    assert found.marks[:6].tolist() == [0.75, 0.0, -1.5, 0.0, 0.75, 0.0]
    for number in (0, 5):
        row, other, before = (found.rows[i] for i in (2 * number, 2 * number + 1, 2 * number - 2))
        start = int(row.mask.argmax())
        assert other.ids[:start].tolist() == row.ids[:start].tolist()
        assert other.ids[other.mask].tolist() == before.ids[before.mask].tolist()


def test_kto_makes_desirable_answers_likelier_from_a_loss_of_one_half_on(tiny_model, tmp_path, verdicts):
    sft = {"objective": "kto", "steps": 10, "batch_size": 9, "learning_rate": 3e-3, "lr_schedule": "constant"}
    run = write_run(tmp_path / "run", tiny_model, {"train": verdicts}, sft)
    train_supervised(run)
    steps = steps_of(run)
    assert steps[1]["sft/drift"] == 0.0
    # Nothing has moved: every answer's loss is a half, and the weights are 1 in the mean.
    first = sum(0.5 * (0.75 if i % 3 != 1 else 1.5) for i in range(18)) / 18
    assert first == 0.5
    assert steps[1]["sft/loss"] == pytest.approx(0.5, abs=0.13)
    assert steps[10]["sft/loss"] < steps[1]["sft/loss"] - 0.01
    assert steps[10]["sft/margin"] > 0


def test_a_resumed_kto_ends_as_one_that_was_not_interrupted(tiny_model, tmp_path, verdicts):
    sft = {"objective": "kto", "steps": 4, "batch_size": 6, "checkpoint_every": 2, "lr_schedule": "constant"}
    whole = train_supervised(write_run(tmp_path / "whole", tiny_model, {"train": verdicts}, sft))
    run = tmp_path / "resumed"
    train_supervised(write_run(run, tiny_model, {"train": verdicts}, sft | {"steps": 2}))
    resumed = train_supervised(write_run(run, tiny_model, {"train": verdicts}, sft))
    expected, found = weights_of(whole), weights_of(resumed)
    assert all(torch.equal(t, found[file][name]) for file, one in expected.items() for name, t in one.items())


def test_rows_without_a_verdict_or_of_one_kind_are_refused(tiny_model, tmp_path):
    row = {"prompt": "q", "completion": "north", "label": True}
    with pytest.raises(ConfigError, match=r"sft.objective: needs a column 'label', which .* has not"):
        Verdicts(opened(tmp_path / "a", [{"prompt": "q", "completion": "north"}]))
    with pytest.raises(InputError, match=r"pairs.jsonl, line 2: label: must be true or false, got 2"):
        list(Verdicts(opened(tmp_path / "b", [row, row | {"label": 2}])))
    data = {"train": written(tmp_path / "c.jsonl", [row, row | {"prompt": "r"}])}
    with pytest.raises(InputError, match="needs rows whose label is true and rows where it is false"):
        train_supervised(write_run(tmp_path / "run", tiny_model, data, {"objective": "kto"}))


def test_a_model_learns_rows_it_half_knows_by_the_tokens_it_would_write_itself(tiny_model, tmp_path):
    """Rows of one answer: tokens are drawn from the model, and their likelihood, which is measured, rises."""
    files = {}
    for name, prompts in (("train", range(16)), ("heldout", range(16, 20))):
        files[name] = tmp_path / f"{name}.jsonl"
        rows = [{"prompt": f"q{number}", "completion": "north"} for number in prompts]
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {name: str(file) for name, file in files.items()}
    known = train_supervised(
        write_run(tmp_path / "first", tiny_model, data, {"steps": 6, "learning_rate": 3e-3})
    )
    sft = {"objective": "one_token", "steps": 30, "learning_rate": 3e-3, "checkpoint_every": 0}
    run = write_run(tmp_path / "second", str(known), data, sft)
    train_supervised(run)
    steps = steps_of(run)
    assert steps[30]["sft/heldout_loss"] < 0.3 * steps[0]["sft/heldout_loss"]


def test_a_step_draws_the_same_tokens_when_it_is_taken_again(tiny_model, tmp_path):
    rows = [{"prompt": f"q{number}", "completion": WORDS[number % 4]} for number in range(8)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sft = {"objective": "one_token", "steps": 4, "batch_size": 4}
    found = [
        weights_of(train_supervised(write_run(tmp_path / name, tiny_model, {"train": str(file)}, sft)))
        for name in ("a", "b")
    ]
    for name, tensors in found[0].items():
        assert all(torch.equal(tensor, found[1][name][key]) for key, tensor in tensors.items())
