"""The settings of a judge, `[judge]`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from asyncrl.config_sections import Section, Seldom, empty_or_url

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""The name of a component: it stands alone before a colon in a reply, and ends the name of a metric."""
KEY = "ASYNCRL_JUDGE_KEY"
"""Environment variable with the bearer key of `judge.url`."""
OWN = ("folder", "policy")
"""Kinds of judges that the run serves itself."""
RESERVED = ("overall", "turn", "turns")
"""Names that mean something else in a reply, or in Parquet."""
DEFAULT_PROMPT = (
    "Rate from 0 to 10 how well the assistant did its task. Reason briefly, then give the number alone on the "
    "last line.\n\nTask data: {task}\n\nConversation:\n{conversation}"
)


class ComponentConfig(Section):
    """One part of a judge's reward: a criterion that the judge is told, or a function."""

    rubric: str = ""
    """What the judge is to look at."""
    function: str = ""
    """An import path such as `my.py:f`, called as a reward is (docs/rewards.md), in place of a rubric."""
    output: str = ""
    """In place of a rubric: what a reward model gives under this label of its `config.json`."""
    weight: float = 1.0
    """Factor of the component in the reward."""
    scale: list[float] = Field(default_factory=lambda: [0.0, 10.0], min_length=2, max_length=2)
    """The least and the most that the judge may give; what it gives is brought to 0 to 1."""

    @model_validator(mode="after")
    def _check(self) -> ComponentConfig:
        if [bool(self.rubric.strip()), bool(self.function), bool(self.output)].count(True) != 1:
            raise ValueError("must have either a rubric or a function, or an output of a reward model")
        if not self.rubric and "scale" in self.model_fields_set and self.scale != [0.0, 10.0]:
            raise ValueError("a scale is for a rubric; functions and reward models return what it is worth")
        least, most = self.scale
        if not -1e6 <= least < most <= 1e6:
            raise ValueError("scale must be the least and the most, two numbers up to 1000000")
        return self


class JudgeConfig(Section):
    """A judge or reward model that scores finished episodes; none without a `url`, `components` or a `kind` that needs
    neither."""

    url: str = ""
    """Address of the server, with or without the `/v1` that ends it; its API key is read from ASYNCRL_JUDGE_KEY."""
    kind: Seldom[Literal["chat", "score", "folder", "policy"]] = "chat"
    """`chat`: an OpenAI-compatible server; `policy`: the policy itself at one version, as a chat judge in an engine of
    its own; `score`: a reward model behind one HTTP route; `folder`: a reward model in a folder of this machine,
    `model`, which a process of the run serves."""
    model: str = ""
    """Model that a chat judge is asked for. With `kind = "folder"` the folder of a sequence-classification model, with
    `kind = "policy"` that of the version that judges, by default the model that the run starts from."""
    prompt: Seldom[str] = DEFAULT_PROMPT
    """What a chat judge reads; `{conversation}` and `{task}` are filled in. The last line of its reply must be a number
    from 0 to 10 and nothing else; divided by 10 it is the score. Any other reply is the judge's failure. With
    components or `per_turn`, `{form}` must stand in it, which says how the reply ends, and `{rubric}` may."""
    mode: Seldom[Literal["replace", "add"]] = "replace"
    """Whether the score is the reward, or is added to the environment's."""
    weight: Seldom[float] = 1.0
    """Factor of the score."""
    components: dict[str, ComponentConfig] = Field(default_factory=dict)
    """Named parts of the score: tables `[judge.components.NAME]` with a `rubric` or a `function`, and `weight` and
    `scale` (docs/rewards.md). The score is their weighted sum."""
    per_turn: Seldom[bool] = False
    """Have a chat judge score each turn of the main agent as well; a turn's score enters that turn's reward."""
    relative: Seldom[Literal["off", "ranking", "pairwise"]] = "off"
    """Have a chat judge compare the episodes of a group in place of scoring each: all at once, or every two, in both
    orders. The score is the share of the others that an episode beats (docs/rewards.md)."""
    samples: Seldom[int] = Field(1, ge=1, le=64)
    """Replies that a chat judge is asked for each episode; several are sampled at temperature 1."""
    vote: Seldom[Literal["mean", "median", "majority"]] = "mean"
    """How the scores of several replies become one."""
    max_characters: Seldom[int] = Field(60_000, ge=1000)
    """Characters of a conversation that a chat judge is shown; longer messages are cut in their middle, with a note."""
    max_tokens: Seldom[int] = Field(512, ge=1)
    """Tokens of a chat judge's reply at most; 16 more for each component and turn."""
    max_requests: Seldom[int] = Field(0, ge=0)
    """Requests that all workers of a run, or an evaluation, may send to the judge, repeated ones included; 0 for no
    limit. Once they are spent the judge fails, and with it every episode that it would have scored."""
    max_total_tokens: Seldom[int] = Field(0, ge=0)
    """Tokens likewise, read and written, by the `usage` that a chat judge's server reports; 0 for no limit. Replies
    that are on their way when they are spent still come, and are counted."""

    _check_url = field_validator("url")(empty_or_url)

    @field_validator("components")
    @classmethod
    def _check_names(cls, components: dict[str, ComponentConfig]) -> dict[str, ComponentConfig]:
        for name in components:
            if NAME.fullmatch(name) is None or name in RESERVED:
                raise ValueError(
                    f"{name!r} is no name of a component; allowed: up to 32 small letters, digits and _, a letter "
                    f"first, and none of {', '.join(RESERVED)}"
                )
        return components

    @property
    def active(self) -> bool:
        """Whether a run has a judge."""
        return bool(self.url or self.components or self.kind in OWN)

    @property
    def budgeted(self) -> bool:
        """Whether what the judge costs is bounded."""
        return bool(self.max_requests or self.max_total_tokens)

    @property
    def served(self) -> bool:
        """Whether a server is asked, beside functions."""
        return bool(self.url) or self.kind in OWN

    @property
    def chats(self) -> bool:
        """Whether that server is a language model's, which is shown the conversation and replies in text."""
        return self.kind in ("chat", "policy")

    @property
    def rubrics(self) -> dict[str, ComponentConfig]:
        """The components that the judge itself scores."""
        return {name: one for name, one in self.components.items() if one.rubric}

    @property
    def outputs(self) -> dict[str, str]:
        """The labels under which a reward model gives components, by the components' names."""
        return {name: one.output for name, one in self.components.items() if one.output}

    @property
    def functions(self) -> dict[str, ComponentConfig]:
        """The components that functions score."""
        return {name: one for name, one in self.components.items() if one.function}

    @property
    def in_lines(self) -> bool:
        """Whether a reply ends with a line for each number that is asked for, and not with one number alone."""
        return bool(self.rubrics) or self.per_turn


class JudgePlacement(Section):
    """Keys of `[placement]`."""

    judge_engine: Seldom[list[Annotated[int, Field(ge=0)]]] = Field(default_factory=list)
    """The GPU of the engine of a judge that is the policy itself (`judge.kind = "policy"`); left out, the trainer's
    first, on which engines leave no room."""

    reward_model: Seldom[list[Annotated[int, Field(ge=0)]]] = Field(default_factory=list)
    """The GPU of the reward model's process (`judge.kind = "folder"`); left out, the trainer's first."""
