"""Token ids of a recorded run are compared with those of the model, as far as files say them."""

import json
import re

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.replay.recorded_tokenizer import check_tokenizer, token_ids
from asyncrl.run.checkpoints import MARKER, STATE, VALUES


def tokenizer(vocabulary, added=()):
    return json.dumps({"model": {"vocab": vocabulary}, "added_tokens": list(added)})


def run_of(folder, text):
    saved = folder / "run" / "checkpoints" / "step-000001"
    (saved / STATE).mkdir(parents=True)
    (saved / STATE / VALUES).touch()
    (saved / MARKER).touch()
    (saved / "tokenizer.json").write_text(text)
    return folder / "run"


def model_of(folder, text):
    (folder / "model").mkdir()
    (folder / "model" / "tokenizer.json").write_text(text)
    return str(folder / "model")


def test_ids_are_those_of_the_vocabulary_and_of_added_tokens(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(tokenizer({"a": 0, "b": 1}, [{"content": "<end>", "id": 2}]))
    assert token_ids(file) == {"a": 0, "b": 1, "<end>": 2}
    file.write_text(tokenizer([["a", -1.5], ["b", -2.0]]))
    assert token_ids(file) == {"a": 0, "b": 1}
    file.write_text("{}")
    assert token_ids(file) is None
    assert token_ids(tmp_path / "none.json") is None


def test_another_tokenizer_is_refused_by_the_first_token_that_differs(tmp_path):
    run, model = (
        run_of(tmp_path, tokenizer({"a": 0, "b": 1})),
        model_of(tmp_path, tokenizer({"a": 0, "b": 2})),
    )
    message = f"train.complete_from: {run}: was sampled by a model with another tokenizer than {model}: only one of "
    with pytest.raises(ConfigError, match=re.escape(message) + "them has token 'b' as 1"):
        check_tokenizer("train.complete_from", run, model)


def test_equal_ids_are_taken_and_what_is_not_known_is_not_refused(tmp_path):
    text = tokenizer({"a": 0, "b": 1})
    run, model = run_of(tmp_path, text), model_of(tmp_path, tokenizer({"b": 1, "a": 0}))
    for name in (model, "sft", "no/such-model", "./not a name"):
        check_tokenizer("train.complete_from", run, name)
    check_tokenizer("train.complete_from", tmp_path, model)
