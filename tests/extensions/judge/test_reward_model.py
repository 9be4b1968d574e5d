"""What the folder of a reward model holds, and which folders are refused before anything starts."""

import pytest
from safetensors.torch import load_file, save_file

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.judge.reward_model import RewardModel, read_reward_model
from asyncrl.launch.checks.check import check_extensions
from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save
from tests.extensions.judge.reward_models import CONTEXT, CORPUS, make, rewrite


def read(folder):
    return read_reward_model("judge.model", str(folder))


def test_a_folder_says_its_labels_and_its_context(tmp_path):
    folder = make(tmp_path, labels=("right", "brief"))
    assert read(folder) == RewardModel(folder, ("right", "brief"), CONTEXT)
    rewrite(folder, "tokenizer_config.json", model_max_length=64)
    assert read(folder).context_tokens == 64


def no_head(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights.pop("score.weight")
    save_file(weights, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "must be the folder of a model of transformers"),
        (
            lambda f: rewrite(f, "config.json", architectures=["Qwen3ForCausalLM"]),
            r"has no classification head: its architectures are \['Qwen3ForCausalLM'\]; allowed are those that "
            "end with ForSequenceClassification",
        ),
        (lambda f: rewrite(f, "config.json", auto_map={"AutoModel": "m.M"}), "code of its own"),
        (lambda f: (f / "chat_template.jinja").unlink(), "has no chat template"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            r"has no weights in safetensors; \['pytorch_model\.bin'\] are not read",
        ),
        (no_head, "the weights of .* have no head"),
        (
            lambda f: rewrite(f, "config.json", id2label={"0": "a", "1": "b"}),
            "names 2 labels, and its head has",
        ),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 100), "cannot be read"),
    ],
)
def test_a_wrong_folder_is_refused_with_its_key(tmp_path, change, message):
    folder = make(tmp_path)
    change(folder)
    with pytest.raises(ConfigError, match=rf"judge\.model: .*{message}"):
        check(model=str(folder))


def check(**judge):
    check_extensions(
        parse_config(
            {"model": {"path": "m"}, "env": {"name": "gridworld"}, "judge": {"kind": "folder", **judge}}
        )
    )


def test_a_language_model_is_no_reward_model(tmp_path):
    tokenizer = build_tokenizer(CORPUS * 20, 400, CONTEXT)
    save(tmp_path, build_model(len(tokenizer), 64, 2, 2, CONTEXT, tokenizer.eos_token_id, seed=0), tokenizer)
    with pytest.raises(ConfigError, match="has no classification head"):
        check(model=str(tmp_path))


def test_labels_that_do_not_match_components_are_refused_with_those_that_would(tmp_path):
    folder = str(make(tmp_path, labels=("right", "brief-enough")))
    with pytest.raises(
        ConfigError, match=r"judge\.components: .* gives 2 numbers; name those.*right, brief-enough"
    ):
        check(model=folder)
    wrong = {"a": {"output": "wrong"}}
    with pytest.raises(
        ConfigError, match=r"judge\.components\.a\.output: .*has no 'wrong'; allowed: right, brief"
    ):
        check(model=folder, components=wrong)
    check(model=folder, components={"a": {"output": "brief-enough"}})
