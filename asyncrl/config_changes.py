"""What became of keys that earlier versions had: recipes are told, and the files of earlier runs still load."""

from __future__ import annotations

import copy
import logging
from typing import Any

log = logging.getLogger("asyncrl.config")

MOVED = {
    "engine.threads": "run.threads",
    "train.threads": "run.threads",
    "engine.start_timeout_s": "run.start_timeout_s",
    "env.lease_s": "rollout.lease_s",
    "trust.max_logp_error": "train.max_logp_error",
    "reference.url": "reference.path",
    "teacher.url": "teacher.path",
    **{f"critic.{key}": f"algo.value.{key}" for key in ("trunk", "learning_rate", "warmup_steps")},
    **{f"sft_phase.{key}": f"algo.sft_phase.{key}" for key in ("every", "steps", "learning_rate", "keep")},
    **{
        f"staleness_control.{key}": f"algo.staleness_control.{key}"
        for key in ("enabled", "minimum", "low_ess", "high_ess", "patience")
    },
}
"""Keys by what they are called now."""

REMOVED: dict[str, tuple[Any, str]] = {
    "engine.kv_cache_gib": (1, "vLLM reads VLLM_CPU_KVCACHE_SPACE"),
    "rollout.max_tokens": (0, "engine.max_model_len is the limit"),
    "rollout.hint_turns": (1, "it is always 1"),
    "rollout.max_attempts": (3, "it is always 3"),
    "train.weight_decay": (0.0, "it is always 0"),
    "train.max_grad_norm": (1.0, "it is always 1"),
    "train.keep_checkpoints": (2, "it is always 2"),
    "lora.max_versions": (2, 'it is 2 unless engine.extra_args has "--max-loras"'),
    "critic.path": ("", "a critic starts from the policy's model"),
    "trust.max_token_error": (15.0, "it is always 15"),
    "trust.sample_tokens": (2048, "it is always 2048"),
    "judge.scale": (10.0, "it is always 10; judge.weight scales too"),
    "judge.max_tokens": (512, "it is always 512"),
    "judge.timeout_s": (60.0, "it is always 60"),
    "judge.max_in_flight": (32, "it is always 32"),
    "reference.offload": (None, "the copy is offloaded under train.zero_stage = 3"),
    "teacher.offload": (None, "the copy is offloaded under train.zero_stage = 3"),
    "eval.samples": (1, "it is always 1; `asyncrl eval --samples` plays more"),
    "sft.num_heads": (None, "it is sft.hidden_size / 32"),
    "sft.vocab_size": (512, "it is always 512"),
}
"""Keys by the value that is taken in their place, None for one that follows from others, and what to say."""

VALUES: dict[str, dict[str, tuple[Any, str]]] = {
    "engine.weight_transfer": {
        "nccl": ("collective", "it is 'collective' now, for any number of engines"),
        "ipc": ("shared_file", "'shared_file' does the same through host memory, and verifies what it loads"),
    },
}
"""Values that a key does not take anymore, by the one taken in their place, and what to say."""


def what_became_of_value(key: str, value: Any) -> str:
    """Return what to tell about an earlier value of a key, "" for one that never was."""
    return VALUES.get(key, {}).get(value, (None, ""))[1] if isinstance(value, str) else ""


def what_became_of(key: str) -> str:
    """Return what to tell about an earlier key or section, "" for one that never was."""
    if key in MOVED:
        return f"it is {MOVED[key]} now"
    if key in REMOVED:
        return REMOVED[key][1]
    inner = [(old, new) for old, new in MOVED.items() if old.startswith(f"{key}.")]
    tables = {new.rpartition(".")[0] for _, new in inner}
    if len(inner) > 1 and len(tables) == 1:
        return f"its keys are in {tables.pop()} now"
    return ", ".join(f"{old} is {new} now" for old, new in inner)


def of_today(data: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of an earlier version's run with the keys of this one.

    Says which of the run's values no setting can hold anymore.
    """
    data = copy.deepcopy(data)
    policies = (data.get("policies") or {}).values()
    for holder in (data, *policies):
        for old, new in MOVED.items():
            value = _taken(holder, old)
            *tables, key = new.split(".")
            if holder is not data and tables[0] not in (old.split(".")[0], "algo"):
                continue  # policies share that section
            if value not in (None, ""):
                if tables[0] == "algo":
                    # A policy's objective replaces the main one as a whole.
                    holder["algo"] = copy.deepcopy(holder.get("algo") or data.get("algo") or {})
                _put(holder, tables, key, value)
        for key, changed in VALUES.items():
            section, _, name = key.partition(".")
            keys = holder.get(section)
            if isinstance(keys, dict) and keys.get(name) in changed:
                keys[name] = changed[keys[name]][0]
        for old, (value, why) in REMOVED.items():
            had = _taken(holder, old)
            if had is not None and value is not None and had != value:
                log.warning("%s=%r of this run is not a setting anymore: %s", old, had, why)
        for section in {key.split(".")[0] for key in (*MOVED, *REMOVED)}:
            if holder.get(section) == {}:
                del holder[section]
    return data


def _put(holder: dict[str, Any], tables: list[str], key: str, value: Any) -> None:
    """Set a key that has no value yet."""
    for table in tables:
        holder = holder.setdefault(table, {})
    if holder.get(key, "") == "":
        holder[key] = value


def _taken(holder: dict[str, Any], dotted: str) -> Any:
    """Take a key out of its section; None where there is none."""
    section, key = dotted.split(".")
    keys = holder.get(section)
    if not isinstance(keys, dict) or key not in keys:
        return None
    return keys.pop(key)
