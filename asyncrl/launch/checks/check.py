"""Finds wrong settings before anything starts and before there is a run folder. Loads no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.algo.settings import needed, part_needs, resolve_settings
from asyncrl.chat.check_process import check_chat
from asyncrl.chat.tool_formats import check_formats, needs_library
from asyncrl.config import Config
from asyncrl.config_checks import check_objective
from asyncrl.conflicts.between import check_policy_objectives
from asyncrl.conflicts.registry import FEATURES
from asyncrl.env.config_check import (
    check_environment,
    check_place,
    check_provided,
    check_settings,
    first_task,
)
from asyncrl.env.protocol import Env
from asyncrl.env.registry import ELSEWHERE, ENVS, load_env
from asyncrl.errors import ConfigError, EpisodeError, did_you_mean
from asyncrl.extensions.table import Row, rows
from asyncrl.gpus import check_fused_kernel, found_gpus
from asyncrl.images import has_images
from asyncrl.import_path import top_level_names
from asyncrl.launch.checks.places import check_places
from asyncrl.launch.machines.placement import plan
from asyncrl.launch.models.base_model import base_model_is_cached
from asyncrl.rewards import load_reward
from asyncrl.rollout.elsewhere import played_elsewhere
from asyncrl.rollout.strategies.answers import has_answer
from asyncrl.rows.scan import MESSAGES
from asyncrl.rows.settings import DATASET, resolved
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.services.engine.additions import additions
from asyncrl.tasks.data_rows import has_rows
from asyncrl.tasks.tasks import tasks_of
from asyncrl.types import Task

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
HUB_TIMEOUT_S = 10.0
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json")


def check_recipe(config: Config) -> None:
    """Check the configuration alone: objectives, and the settings of the environment by their signatures.

    Raises `ConfigError` naming the key, the value and what is allowed.
    """
    for one in (config, *(config.policy(name) for name in config.policies)):
        check_objective(one)
        check_provided(one.env.name, one.env.config, env_needs(one))
    check_policy_objectives(config)
    check_formats(config.model.tool_format, config.model.reasoning_format)
    check_settings(config.env.name, config.env.config)
    check_carrier(config.engine.weight_transfer)
    for name in config.env.limits:
        if name not in ENVS and ":" not in name:
            load_env(name, "env.limits")


def env_needs(config: Config) -> dict[str, str]:
    """Return what the objective reads of an environment's steps (`Env.provides`), with the key that asks for it.

    What trajectories have at the end of an episode anyway, no environment must give.
    """
    settings = resolve_settings(config.algo)
    words = part_needs("advantage", settings["advantage"])
    words -= {word for row in _scoring(config) for word in row.provides}
    asking = f"algo.advantage.name={settings['advantage']['name']!r}"
    return {word: asking for word in ("components", "matches") if word in words}


def _scoring(config: Config) -> list[Row]:
    """Return what gives episodes a reward of its own, one by one or a group at once."""
    return [row for seam in ("episode_ends", "group_rewards") for row in rows(seam) if row.wanted(config)]


def check_answers(config: Config, task: Task) -> None:
    """Refuse an objective that asks how likely the right answer is for a task that has none. Raises `ConfigError`."""
    for one in (config, *(config.policy(name) for name in config.policies)):
        settings = resolve_settings(one.algo)
        if "answers" in needed(settings) and not has_answer(task):
            raise ConfigError(
                f"algo.advantage.name: {settings['advantage']['name']!r} reads how likely the right answer is, so "
                f"each task's data must have it as 'answer', a text or message; task {task.id!r} of "
                f"{config.env.name!r} has {task.data.get('answer')!r}"
            )


def check_carrier(transfer: str) -> None:
    """Refuse a weight transport of the user's own that is not there. It is not imported here, since it may load torch.

    Raises `ConfigError`.
    """
    module, separator, name = transfer.rpartition(":")
    if separator and name not in (there := top_level_names("engine.weight_transfer", module)):
        raise ConfigError(
            f"engine.weight_transfer: module {module} has no class {name!r}{did_you_mean(name, there)}"
        )


def check_run(config: Config, alone: bool = True) -> list[str]:
    """Check everything that can be known before a run starts: the recipe, tasks, models, agent and environment.

    alone: whether the run is on this machine only, and so needs all its GPUs here.
    Returns what is worth knowing of the model, a line each. Raises `ConfigError` and `InputError` naming the key, the
    value and what is allowed.
    """
    check_recipe(config)
    check_places(config, alone)
    if alone:
        plan(config, found_gpus())
    tools = check_tasks(config)
    check_extensions(config, alone)
    described = check_model("model.path", config.model.path, config)
    _check_whole(described, "model.path", config.model.path)
    for row in rows("model_checks"):
        if row.wanted(config):
            row.load()(config, described)
    notes = check_turn_format(config, tools)
    check_engine(config)
    if config.train.fused_logprobs and alone:
        check_fused_kernel()
    for name in config.policies:
        policy = config.policy(name)
        key = f"policies.{name}.model.path"
        _check_whole(check_model(key, policy.model.path, policy), key, policy.model.path)
    for section, other in config.other_models.items():
        if other.is_loaded:
            check_model(f"{section}.path", other.path, config, policy=False)
    return notes


def check_tasks(config: Config) -> bool:
    """Check that there are tasks, and that the environment takes its settings and the first of them; return whether it
    offers tools.

    Every row of `[data]` is read. Raises `ConfigError`, `InputError`.
    """
    env = config.env
    check_place(env.name, env.services, env.config)
    if has_rows(config):
        check_rewards(config)
    task = _first_task(config, "train")
    check_answers(config, task)
    heldout = None
    if config.eval.tasks:
        try:
            heldout = _first_task(config, "heldout")
        except ConfigError as error:
            raise ConfigError(
                f"{error}; eval.tasks={config.eval.tasks} needs some, 0 goes without"
            ) from error
    if (elsewhere := played_elsewhere(env.name)) is not None:
        elsewhere.check(env.config, task, config.rollout.episode_timeout_s)
        return False
    offers_tools = check_environment(env.name, env.config, task, step_timeout_s=env.given_step_s)
    if env.task_file and heldout is not None:
        _check_heldout(config, heldout)
    return offers_tools


def _first_task(config: Config, split: str) -> Task:
    """Return the first task of a split. Raises `ConfigError` where there is none."""
    env = config.env
    if not has_rows(config) and not env.task_file:
        return first_task(env.name, env.config, split)
    if (found := next(tasks_of(config, split), None)) is not None:
        return found
    if has_rows(config):
        raise ConfigError(
            "data.train: missing; name the rows to train on"
            if split == "train"
            else "data.heldout: there is no held-out row; name some, or raise data.heldout_share"
        )
    raise ConfigError(
        f"env.task_file: {env.task_file} has no task of the split {split!r}, nor has {env.name!r}"
    )


def _check_heldout(config: Config, task: Task) -> None:
    """Refuse held-out tasks that are not in the task file, and that the environment cannot be made for."""
    env = config.env
    try:
        check_environment(env.name, env.config, task, fails=True)
    except EpisodeError as error:
        raise ConfigError(
            f"env.task_file: {env.task_file} has no task whose split is 'heldout', and {env.name!r} cannot play its "
            f"own ({str(error).splitlines()[0]}); give some, or eval.tasks=0"
        ) from error


def check_rewards(config: Config) -> None:
    """Check that rows have a reward, or a judge. Raises `ConfigError`."""
    spec = resolved(config.data).reward
    if spec:
        load_reward(spec)
    if config.env.name == DATASET and not spec and not _scoring(config):
        raise ConfigError(
            "data.reward: missing; name one (docs/rewards.md), such as math, exact, choice, or my.py:f, or give a "
            "judge.url, or majority.mode for rows without answers"
        )
    if config.env.name != DATASET and config.data.reward:
        raise ConfigError(
            f"data.reward: must be left out for env.name={config.env.name!r}, which scores its answers itself"
        )


def check_engine(config: Config) -> None:
    """Raise `ConfigError` for what this machine's vLLM does not have of what a recipe asks of engines."""
    additions(config, publishes=True)


def check_extensions(config: Config, alone: bool = True) -> None:
    """Check what extensions ask of the run's tasks, and of this machine. alone: see `check_run`.

    Raises `ConfigError` and `InputError`.
    """
    for row in rows("checks"):
        if row.wanted(config):
            row.load()(config, alone)


def check_evaluation(config: Config, split: str = "heldout", key: str = "checkpoint") -> list[str]:
    """Check what can be known before tasks of a split are played by `model.path`; return what is worth knowing of it.

    key: names the model in errors. Raises `ConfigError`, `InputError`.
    """
    env = config.env
    check_settings(env.name, env.config)
    check_place(env.name, env.services, env.config)
    if (elsewhere := played_elsewhere(env.name)) is not None:
        elsewhere.check_evaluation(env.config)
    if has_rows(config):
        check_rewards(config)
    task = _first_task(config, split)
    check_model(key, config.model.path, config)
    check_engine(config)
    if elsewhere is not None:
        elsewhere.check(env.config, task, config.rollout.episode_timeout_s)
        return check_turn_format(config, False)
    offers_tools = check_environment(env.name, env.config, task, step_timeout_s=env.given_step_s)
    return check_turn_format(config, offers_tools)


def check_model(key: str, path: str, config: Config, policy: bool = True) -> dict[str, Any]:
    """Check that a model is there: a folder, the hub's, or one that the environment's scripted expert can make.

    policy: it is also served, so it must have the context that the engine is asked for.
    Returns what its `config.json` says, nothing for one that is yet to be made or downloaded.
    """
    if path == "sft" and policy:
        _check_expert(key, config)
        return {}
    local = Path(path)
    named = path.startswith(("/", ".", "~")) or path.count("/") > 1 or not HUB_NAME.fullmatch(path)
    description = _read(_check_folder(key, local) if named or local.exists() else _check_hub(key, path))
    context = _context(description)
    if policy:
        _check_vision(path, description, config)
    if policy and context and config.engine.max_model_len > context:
        raise ConfigError(
            f"engine.max_model_len: must be at most {context}, the context of {path!r}, got "
            f"{config.engine.max_model_len}"
        )
    return description


def _check_whole(description: Mapping[str, Any], key: str, path: str) -> None:
    """Refuse to train a quantised model, such as gpt-oss in MXFP4. Raises `ConfigError`."""
    if quantized := description.get("quantization_config"):
        raise ConfigError(
            f"{key}: {path!r} is quantised ({quantized.get('quant_method')}), and its engine could not load the whole "
            "weights that are trained; give the model in bfloat16, as transformers saves it when it is loaded with "
            "dequantize=True in its quantization_config. Engines can round while sampling (docs/engine-and-trainer.md)"
        )


def _check_vision(path: str, description: Mapping[str, Any], config: Config) -> None:
    """Refuse a policy that reads images together with what does not take them along, and rows with images for one that
    does not read any. Raises `ConfigError`."""
    if "vision_config" not in description:
        if description and _rows_show_images(config):
            key = "data.images" if config.data.images else "data.train"
            raise ConfigError(
                f"{key}: has images, and {path!r} reads text alone; name a vision model as model.path (docs/images.md)"
            )
        return
    for key in (key for one in FEATURES for key in one.with_images(config)):
        raise ConfigError(f"{key}: must be left at its default for {path!r}, a vision model (docs/images.md)")


def _rows_show_images(config: Config) -> bool:
    """Whether images are shown with the rows of `[data]`, as far as the first one says."""
    if config.data.images or not has_rows(config):
        return bool(config.data.images)
    first = next(tasks_of(config, "train"), None) or next(tasks_of(config, "heldout"), None)
    return first is not None and has_images(first.data.get(MESSAGES, ()))


def check_turn_format(config: Config, needs_tools: bool) -> list[str]:
    """Check that the chat template shows what the tasks need, and that the tokenizer has the tokens that the formats
    of its turns need; in a process of its own, which takes seconds.

    needs_tools: whether the environment offers tools. Returns what is worth knowing, a line each. Raises `ConfigError`.
    """
    model = config.model
    if model.chat_template and not Path(model.chat_template).expanduser().is_file():
        raise ConfigError(f"model.chat_template: there is no file {model.chat_template!r}")
    parsers = needs_library(model.tool_format, model.reasoning_format)
    if model.path == "sft" or not (parsers or model.chat_template or has_tokenizer(model.path)):
        return []
    return check_chat(
        {
            "model": model.path,
            "tool_format": model.tool_format,
            "reasoning_format": model.reasoning_format,
            "template_args": model.chat_template_args,
            "template_file": model.chat_template,
            "needs_tools": needs_tools,
        }
    )


def has_tokenizer(path: str) -> bool:
    """Return whether a model's tokenizer is at hand: in its folder, or among what the hub's client has kept."""
    if Path(path).is_dir():
        return any((Path(path) / name).exists() for name in TOKENIZER_FILES)
    import huggingface_hub

    return any(
        isinstance(huggingface_hub.try_to_load_from_cache(path, name), str) for name in TOKENIZER_FILES
    )


def _check_expert(key: str, config: Config) -> None:
    env_class = load_env(config.env.name)
    if config.env.name not in ELSEWHERE and not base_model_is_cached(config):
        for method in ("oracle", "random_policy"):
            if getattr(env_class, method) is getattr(Env, method):
                raise ConfigError(
                    f"{key}: 'sft' makes a base model of scripted episodes, and {config.env.name!r} has no {method}; "
                    "give a model (a Hugging Face folder or a hub name), or write oracle and random_policy"
                )


def _check_folder(key: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError(
            f"{key}: there is no folder {str(folder)!r}; give a Hugging Face folder or a hub name"
        )
    if found := complete_checkpoints(folder / "checkpoints") or complete_checkpoints(folder):
        raise ConfigError(
            f"{key}: {str(folder)!r} holds checkpoints; give one of them, such as {str(found[0][1])!r}"
        )
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise ConfigError(f"{key}: {str(folder)!r} holds an adapter alone; give the model it was trained on")
    if not (folder / "config.json").exists():
        raise ConfigError(
            f"{key}: {str(folder)!r} has no config.json; give a Hugging Face folder or a hub name"
        )
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise ConfigError(f"{key}: {str(folder)!r} has no weights ({', '.join(WEIGHTS)})")
    return folder / "config.json"


def _check_hub(key: str, name: str) -> Path | None:
    """Return the cached `config.json` of a hub's model; None where it is not cached and the hub has it."""
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    found = huggingface_hub.try_to_load_from_cache(name, "config.json")
    if isinstance(found, str):
        return Path(found)
    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
        return None
    except GatedRepoError as error:
        raise ConfigError(f"{key}: {name!r} is gated; ask for access on the hub, and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{key}: there is neither a folder {name!r} here nor such a model on the hub (a private one needs HF_TOKEN)"
        ) from error
    except Exception as error:
        # Of whichever HTTP library the hub's client uses.
        raise ConfigError(
            f"{key}: there is no folder {name!r} here, and the hub's model of that name is neither in the cache nor to "
            f"be had: {type(error).__name__}: {error}"
        ) from error


def _read(described: Path | None) -> dict[str, Any]:
    """Return what a model's `config.json` says; nothing without one."""
    if described is None:
        return {}
    try:
        return json.loads(described.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{described}: cannot be read: {error}") from error


def _context(description: Mapping[str, Any]) -> int:
    """Return the tokens of context that a model states, 0 where it does not or they depend on more than one number."""
    text = description.get("text_config") or description
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kinds = {scaling.get("rope_type", scaling.get("type", "default")), "default"}
    nested = any(isinstance(value, dict) for value in scaling.values())
    context = text.get("max_position_embeddings")
    return context if isinstance(context, int) and len(kinds) == 1 and not nested else 0
