"""What a judge asks of this machine before a run starts."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.judge.functions import Functions
from asyncrl.extensions.judge.reward_model import read_reward_model
from asyncrl.extensions.judge.settings import JudgeConfig


def check_functions(config: Config, alone: bool) -> None:
    """Import the functions of components. alone: see `check_run`. Raises `ConfigError`."""
    Functions(config.section(JudgeConfig).functions).close()


def check_folder(config: Config, alone: bool) -> None:
    """Look at the files of the reward model. alone: see `check_run`. Raises `ConfigError`."""
    judge = config.section(JudgeConfig)
    found = read_reward_model("judge.model", judge.model)
    for name, label in judge.outputs.items():
        if label not in found.labels:
            raise ConfigError(
                f"judge.components.{name}.output: the model in {judge.model} has no {label!r}; allowed: "
                f"{', '.join(found.labels)}"
            )
    if len(found.labels) > 1 and not judge.outputs:
        raise ConfigError(
            f"judge.components: the model in {judge.model} gives {len(found.labels)} numbers; name those that count, "
            f"each by a component with an output of: {', '.join(found.labels)}"
        )


def check_policy(config: Config, alone: bool) -> None:
    """Look at where the workers are. alone: whether the run has this machine only. Raises `ConfigError`."""
    if not alone:
        raise ConfigError(
            "judge.kind: 'policy' is for runs on one machine, whose workers reach the judge's engine on loopback; "
            "serve the model with vLLM where all machines reach it, and give judge.url"
        )
