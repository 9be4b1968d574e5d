"""The settings of a judge, `[judge]`."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from asyncrl.config_sections import Section, Seldom, empty_or_url


class JudgeConfig(Section):
    """A judge or reward model that scores finished episodes; none without a `url`."""

    url: str = ""
    """Address of the server; its API key is read from ASYNCRL_JUDGE_KEY."""
    kind: Seldom[Literal["chat", "score"]] = "chat"
    """`chat`: an OpenAI-compatible server; `score`: a reward model behind one HTTP route."""
    model: str = ""
    """Model that a chat judge is asked for."""
    prompt: Seldom[str] = (
        "Rate from 0 to 10 how well the assistant did its task. Reason briefly, then give the number alone on the "
        "last line.\n\nTask data: {task}\n\nConversation:\n{conversation}"
    )
    """What a chat judge reads; `{conversation}` and `{task}` are filled in. The last line of its reply must be a number
    from 0 to 10 and nothing else; divided by 10 it is the score. Any other reply is the judge's failure."""
    mode: Seldom[Literal["replace", "add"]] = "replace"
    """Whether the score is the reward, or is added to the environment's."""
    weight: Seldom[float] = 1.0
    """Factor of the score."""

    _check_url = field_validator("url")(empty_or_url)
