"""Wrong settings are found before anything starts, and leave no run folder behind."""

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from PIL import Image

from asyncrl.cli import main
from asyncrl.config import load_config, parse_config
from asyncrl.env.config_check import check_settings
from asyncrl.errors import ConfigError, InputError
from asyncrl.images import png_part
from asyncrl.launch.checks.check import (
    check_evaluation,
    check_model,
    check_run,
)

ENV = """
from typing import Literal
from asyncrl.env.protocol import Env, Step
from asyncrl.types import Task

class Mine(Env):
    def __init__(self, task, size: int, mode: Literal["a", "b"] = "a", names: tuple[str, ...] = (), near: float = 1.0):
        if size > 9:
            raise ValueError(f"size: must be at most 9, got {size}")
        if mode == "b":
            raise RuntimeError("a fault of its own")

    @classmethod
    def tasks(cls, split, env, size, **config):
        if split == "train":
            yield Task("t", env, 0)

class Anything(Env):
    def __init__(self, task, **config):
        super().__init__(task)

class Listed(Env):
    @classmethod
    def tasks(cls, split, env, rows: int = 3):
        yield Task("t", env, 0)
"""
FOLDER = "there is no folder"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A current folder with environments, a model and nothing else."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine_checked.py").write_text(ENV)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    (model / "model.safetensors").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["env.config={sise=3}"], r"env.config.sise: .*'gridworld' has no such setting; did you mean 'size'\?"),
        (["env.config={size='x'}"], r'env.config.size: input should be a valid integer, got "x"'),
        (["env.config={size=300}"], r"env.config: environment 'gridworld' refuses .*size: must be from 2 to"),
        (["env.name=gridwrld"], r"env.name: unknown environment 'gridwrld'; did you mean 'gridworld'\?"),
        (["env.name=no_such_module:X"], r"env.name: 'no_such_module:X' cannot be imported: there is no module"),
        (["engine.weight_transfer=htpp"], r"engine.weight_transfer: must be 'shared_file', .* or an import path"),
        (["engine.weight_transfer=no_such:X"], r"engine.weight_transfer: 'no_such' cannot be imported: there is no"),
        (
            ["engine.weight_transfer=asyncrl.weights.carrier:HtpCarrier"],
            r"engine.weight_transfer: module asyncrl.weights.carrier has no class 'HtpCarrier'",
        ),
        (["env.name=mine_checked:Mine"], "env.config.size: missing"),
        (["env.name=mine_checked:Mine", "env.config={size=4}"], "Mine' has no task in its 'heldout' split"),
        (["env.name=mine_checked:Mine", "env.config={size=4}", "eval.tasks=0"], "'sft' makes .* has no oracle"),
        (["env.name=mix", "env.config={parts={gridwrld={}}}"], "parts.gridwrld: unknown environment 'gridwrld'"),
        (["env.name=mix", "env.config={parts={sql={config={levle=1}}}}"], r"parts.sql.config.levle: .*'level'"),
        (["env.name=mix", "env.config={parts={sql={config={level=9}}}}"], r"'sql' refuses .* level: must be"),
        (["env.name=math_tool", "env.config={sandbox='bubblewarp'}"], "unknown sandbox backend 'bubblewarp'"),
        (["env.name=terminal", "env.config={folder='./none'}"], "none"),
        (["env.task_file=none.jsonl"], "env.task_file: .*none.jsonl: cannot be read"),
        (["env.task_file=broken.jsonl"], "line 1"),
        (["env.limits={gridwrld=3}"], "env.limits: unknown environment 'gridwrld'"),
        (["env.name=agent", "env.config={calable='x.py:play'}"], r"env.config.calable: .*did you mean 'callable'"),
        (["env.name=agent", "env.config={callable='x.py:play'}"], r"env.config.callable: .*there is no file"),
        (["env.name=agent", "env.config={command=['no-such-program']}"], "there is no program 'no-such-program'"),
        (["env.name=agent", "env.config={command=['true'],cwd='none'}"], "env.config.cwd: there is no folder"),
        (["env.name=agent", "env.config={command=['true'],tasks='gridwrld'}"], "env.config.tasks: unknown environment"),
        (["env.name=agent", "env.config={command=['true'],tasks='sql',task_config={x=1}}"], r"task_config.x: .*'sql'"),
        (["algo.preset=grpp"], "unknown preset 'grpp'"),
        (["algo.loss=no_such_module:f"], "algo.loss: .*there is no module 'no_such_module'"),
        (["model.path=./none"], f"model.path: {FOLDER}"),
        (["model.path=runs/x/checkpoints/step-000002"], f"model.path: {FOLDER}"),
        (["model.path=model", "engine.max_model_len=1024"], "engine.max_model_len: must be at most 512, .* got 1024"),
        (["model.path=model", "reference.path=./none"], f"reference.path: {FOLDER}"),
        (["model.path=model", "judge.url=127.0.0.1:80"], "judge.url: must begin with http"),
        (["policies.b.agents=['x']", "policies.b.train={num_stepz=1}"], "num_stepz: unknown key"),
        (
            ["policies.b.agents=['x']", "policies.b.model={path='./none'}", "model.path=model"],
            f"policies.b.model.path: {FOLDER}",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_before_there_is_a_run_folder(folder, capsys, overrides, problem):
    (folder / "broken.jsonl").write_text("{broken\n")
    with pytest.raises((ConfigError, InputError), match=problem):
        check_run(load_config("gridworld_grpo", overrides))
    assert main(["train", "gridworld_grpo", *overrides]) == 2
    assert capsys.readouterr().err.startswith("asyncrl: ")
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_nothing_is_wrong_with_what_is_right():
    for recipe in ("gridworld_grpo", "mixed_grpo", "team_policies", "agent_grpo"):
        check_run(load_config(recipe))
    check_run(load_config("gridworld_grpo", ["model.path=model"]))
    mine = ["env.name=mine_checked:Mine", "eval.tasks=0", "model.path=model"]
    check_run(load_config("gridworld_grpo", [*mine, "env.config={size=4,names=['x'],near=2}"]))
    # What a constructor raises beyond a refusal is an environment's failure, which is counted as the run goes on.
    check_run(load_config("gridworld_grpo", [*mine, "env.config={size=4,mode='b'}"]))


@pytest.mark.parametrize(
    ("name", "config", "problem"),
    [
        ("Mine", {"size": 1, "mode": "c"}, r"env.config.mode: input should be 'a' or 'b', got \"c\""),
        ("Mine", {"size": True}, "env.config.size: .*integer, got true"),
        ("Mine", {"size": 1, "names": ["x", 3]}, "env.config.names.1: .*string"),
        ("Listed", {"row": 1}, r"env.config.row: .*Listed'.tasks has no such setting; did you mean 'rows'"),
    ],
)  # fmt: skip
def test_types_and_task_lists_are_read_from_signatures(name, config, problem):
    with pytest.raises(ConfigError, match=problem):
        check_settings(f"mine_checked.py:{name}", config)


def test_a_constructor_that_takes_anything_is_given_anything():
    check_settings("mine_checked.py:Anything", {"whatever": 1})


def test_an_evaluation_of_what_is_not_there_starts_nothing(capsys):
    assert main(["eval", "runs/none/checkpoints/step-000010", "--env", "gridworld"]) == 2
    assert "checkpoint: there is no folder" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="gridworld' has no such setting"):
        check_evaluation(load_config("gridworld_grpo", ["model.path=model", "env.config={x=1}"]))


def test_a_folder_without_a_model_is_refused(folder):
    config = load_config("gridworld_grpo")
    (folder / "model" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no weights"):
        check_model("model.path", "model", config)
    (folder / "model" / "config.json").rename(folder / "model" / "adapter_config.json")
    with pytest.raises(ConfigError, match="holds an adapter alone"):
        check_model("model.path", "model", config)


@pytest.mark.parametrize("given", ["runs/one", "runs/one/checkpoints"])
def test_a_run_given_for_a_model_is_answered_with_its_newest_checkpoint(folder, given):
    for step in (2, 10):
        state = folder / f"runs/one/checkpoints/step-{step:06d}/training_state"
        state.mkdir(parents=True)
        (state / "training.json").write_text("{}")
        (state.parent / "complete.json").write_text("{}")
    newest = "give one of them, such as 'runs/one/checkpoints/step-000010'"
    with pytest.raises(ConfigError, match=newest):
        check_model("checkpoint", given, load_config("gridworld_grpo"))


def test_a_model_of_the_hub_is_asked_for_unless_it_is_cached(folder, monkeypatch):
    config = load_config("gridworld_grpo")

    def refuse(*args, **kwargs):
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(ConfigError, match=r"there is no folder 'org/name' here, .*no route"):
        check_model("model.path", "org/name", config)
    cached = str(folder / "model" / "config.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args: cached)
    check_model("model.path", "org/name", config)


@pytest.mark.slow
def test_the_check_loads_no_torch():
    code = (
        "import sys; from asyncrl.config import load_config; from asyncrl.launch.checks.check import check_run; "
        "check_run(load_config('mixed_grpo')); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_recipes_with_a_sandbox_or_a_library_resolve_without_it(monkeypatch, capsys):
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("*/recipe.toml")):
        assert main(["config", str(path)]) == 0, path


@pytest.mark.slow
def test_a_format_that_the_models_tokenizer_cannot_write_is_refused_before_anything_starts(folder, renderer):
    model = folder / "model"
    renderer.tokenizer.save_pretrained(model)
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 512, "model_type": "qwen3"}))
    path = f"model.path={json.dumps(str(model))}"
    config = load_config("gridworld_grpo", [path, 'model.tool_format="deepseek_v31"'])
    with pytest.raises(ConfigError, match="'deepseek_v31' does not suit the model's tokenizer: DeepSeek"):
        check_run(config)
    check_run(load_config("gridworld_grpo", [path, 'model.tool_format="glm45"']))
    with pytest.raises(ConfigError, match=r"model\.tool_format: unknown format 'glm'; allowed: hermes"):
        check_run(load_config("gridworld_grpo", [path, 'model.tool_format="glm"']))


@pytest.mark.parametrize(("key", "images"), [("images", "image"), ("train", "")])
def test_rows_with_images_are_refused_for_a_model_that_reads_text_alone(tmp_path, key, images):
    model = tmp_path / "text"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (model / "model.safetensors").touch()
    uri = png_part(Image.new("RGB", (4, 3)))["image_url"]["url"]
    own = [] if images else [{"type": "image", "image": uri}]
    row = {
        "messages": [{"role": "user", "content": [*own, {"type": "text", "text": "q"}]}],
        "answer": "1",
        "image": uri,
    }
    (tmp_path / "shown.jsonl").write_text(json.dumps(row) + "\n")
    given = {"train": tmp_path / "shown.jsonl", "prompt": "messages", "heldout_share": 0, "images": images}
    config = load_config("smollm2_gsm8k", [f"data.{name}={value}" for name, value in given.items()])
    with pytest.raises(ConfigError, match=rf"^data\.{key}: has images, and .* reads text alone"):
        check_model("model.path", str(model), config)


@pytest.mark.parametrize(
    "setting",
    [
        "lora.rank=8",
        "engine.keep_kv=true",
        "engine.quantization=int8",
        "train.offload_activations=true",
        "train.old_policy=process",
        "train.old_policy=interrupt",
        "teacher.path=http://127.0.0.1:9",
    ],
)
def test_a_vision_model_is_refused_beside_what_does_not_take_images_along(tmp_path, setting):
    model = tmp_path / "vision"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "vision_config": {}}))
    (model / "model.safetensors").touch()
    check_model("model.path", str(model), load_config("gridworld_grpo"))
    config = load_config("gridworld_grpo", setting.split())
    with pytest.raises(ConfigError, match=f"{setting.partition('=')[0]}: .*a vision model"):
        check_model("model.path", str(model), config)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    check_model("model.path", str(model), config)


def test_a_quantised_model_is_refused_for_training_and_not_for_evaluation(tmp_path):
    model = tmp_path / "oss"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mxfp4"}}))
    (model / "model.safetensors").touch()
    config = parse_config({"model": {"path": str(model)}, "env": {"name": "gridworld"}})
    with pytest.raises(ConfigError, match=r"model\.path: '.*oss' is quantised \(mxfp4\)"):
        check_run(config)
    check_evaluation(config)


@pytest.mark.parametrize(
    "changes",
    [
        ["train.nodes=2", "train.ranks=2"],
        ["engine.nodes=2", "engine.tensor_parallel=2"],
        ["buffer.machine=node"],
    ],
)
def test_what_needs_several_machines_is_refused_in_a_run_on_one(changes):
    config = load_config("gridworld_grpo", changes)
    key, value = changes[0].split("=")
    with pytest.raises(ConfigError, match=f"{key} = {value}: the run is on one machine; start it with --on"):
        check_run(config)
