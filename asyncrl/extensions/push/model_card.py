"""What people read of a trained model on a hub: where it comes from, what it reached, on which data and settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncrl import __version__
from asyncrl.config import Config

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""The name of a repository on a hub."""
CURVE = "reward.png"
LEFT_OUT = ("run", "placement")
"""Sections that say nothing about the model, and paths of the machine."""
MOST_LINES = 12
"""Steps that a table shows."""


def model_card(
    config: Config,
    name: str,
    version: int,
    summary: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    adapter: bool = False,
    curve: bool = False,
) -> str:
    """Return the card as Markdown with a heading of YAML.

    name: ORG/NAME. version: the optimizer steps the model has taken. summary: of the run, empty where it has none.
    steps: its metrics in order. adapter: the repository has the adapter alone. curve: the file `CURVE` is beside it.
    """
    # A run of `asyncrl sft` plays nothing, and has no reward.
    supervised = bool(steps) and not any("reward/mean" in step for step in steps)
    parts = [
        _head(config, adapter, supervised),
        f"# {name.partition('/')[2]}",
        _about(config, version, adapter),
    ]
    parts += [_use(name, adapter), "## Results", _results(summary, version)]
    if curve:
        parts.append(f"![Reward by step]({CURVE})")
    parts += [_table(steps, version), "## Data", _data(config), "## Settings", _settings(config)]
    return "\n\n".join(part for part in parts if part) + "\n"


def hub_names(sources: Any) -> list[str]:
    """Return the data sets of a hub among sources as in `data.train`."""
    listed = sources if isinstance(sources, list) else [sources]
    paths = [one if isinstance(one, str) else getattr(one, "path", "") for one in listed]
    return [path for path in paths if NAME.fullmatch(path)]


def _head(config: Config, adapter: bool, supervised: bool) -> str:
    lines = ["---", f"library_name: {'peft' if adapter else 'transformers'}", "pipeline_tag: text-generation"]
    if NAME.fullmatch(config.model.path):
        lines.append(f"base_model: {config.model.path}")
    if sets := dict.fromkeys(hub_names(config.data.train) + hub_names(config.sft.data)):
        lines += ["datasets:", *(f"- {one}" for one in sets)]
    kind = config.sft.objective.replace("likelihood", "sft") if supervised else "reinforcement-learning"
    return "\n".join([*lines, "tags:", "- asyncrl", f"- {kind}", "---"])


def _about(config: Config, version: int, adapter: bool) -> str:
    what = "A LoRA adapter" if adapter else "A model"
    base = _code(_public(config.model.path))
    return f"{what} trained by asyncrl {__version__}: {version} optimizer steps from {base}."


def _use(name: str, adapter: bool) -> str:
    module, made = (
        ("peft", "AutoPeftModelForCausalLM") if adapter else ("transformers", "AutoModelForCausalLM")
    )
    return (
        f"```python\nfrom {module} import {made}\nfrom transformers import AutoTokenizer\n\n"
        f'model = {made}.from_pretrained("{name}")\ntokenizer = AutoTokenizer.from_pretrained("{name}")\n```'
    )


def _results(summary: Mapping[str, Any], version: int) -> str:
    rows = []
    found = [("before training", summary.get("eval_before"))]
    if summary.get("checkpoint", "").endswith(f"-{version:06d}"):
        found.append(("after training", summary.get("eval_after")))
    found += [
        (f"after step {one['version']}", one)
        for one in summary.get("evals") or ()
        if one.get("version") == version
    ]
    for label, one in found:
        if one is None or one.get("mean") is None:
            continue
        low, high = one.get("ci_low"), one.get("ci_high")
        interval = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
        rows.append((label, f"{one['mean']:.3f}", interval, str(one.get("tasks", ""))))
    if not rows:
        return "No held-out tasks were evaluated in the run."
    kind = "success, or the reward where the environment judges none"
    return f"On held-out tasks ({kind}):\n\n" + _rows(("", "mean", "95 % interval", "tasks"), rows)


def _table(steps: Sequence[Mapping[str, Any]], version: int) -> str:
    """Return reward or loss by step, of at most `MOST_LINES` steps."""
    taken = [step for step in steps if step["step"] <= version]
    columns = [
        name
        for name in ("reward/mean", "success/mean", "sft/loss", "sft/heldout_loss")
        if any(name in step for step in taken)
    ]
    if not columns:
        return ""
    every = -(-len(taken) // MOST_LINES)
    shown = [step for number, step in enumerate(taken) if number % every == 0 or number == len(taken) - 1]
    rows = [
        (str(step["step"]), *(f"{step[name]:.4g}" if name in step else "" for name in columns))
        for step in shown
    ]
    return _rows(("step", *columns), rows)


def _data(config: Config) -> str:
    lines = []
    for key, sources in (("data.train", config.data.train), ("sft.data", config.sft.data)):
        for one in sources if isinstance(sources, list) else [sources]:
            path = one if isinstance(one, str) else one.path
            if path:
                lines.append(f"- {_code(key)}: {_code(_public(path))}")
    if config.data.set:
        lines.append(f"- the known set {_code(config.data.set)}")
    if not lines:
        return f"Episodes of the environment {_code(config.env.name)}; no data set."
    held = config.data.heldout
    if held:
        lines.append(
            f"- held out: {_code(_public(held if isinstance(held, str) else str(held)))}, never trained on"
        )
    elif config.data.heldout_share:
        lines.append(f"- held out: {config.data.heldout_share:.0%} of the prompts, never trained on")
    return "\n".join(lines)


def _settings(config: Config) -> str:
    """Return what differs from the defaults."""
    dumped = config.model_dump(mode="json", exclude_defaults=True)
    kept = {section: _publicly(keys) for section, keys in dumped.items() if section not in LEFT_OUT}
    return f"What differs from asyncrl's defaults:\n\n```json\n{json.dumps(kept, indent=2)}\n```"


def _publicly(value: Any) -> Any:
    """Return settings without the folders of the machine they were used on."""
    if isinstance(value, Mapping):
        return {key: _publicly(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_publicly(one) for one in value]
    return _public(value) if isinstance(value, str) else value


def _public(path: str) -> str:
    """Return the last part of an absolute path, and other texts as they are."""
    return path.rstrip("/").rpartition("/")[2] if path.startswith(("/", "~")) else path


def _code(text: str) -> str:
    return f"`{text.replace('`', '').splitlines()[0] if text else ''}`"


def _rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
