"""Classifies exceptions and wrong results of an environment by whose fault they are."""

from __future__ import annotations

import dataclasses
import errno
import math
import traceback
from pathlib import Path
from typing import Any

from asyncrl.env.protocol import MAX_REWARD, Step
from asyncrl.env.tool_schemas import check_tools
from asyncrl.errors import (
    AsyncRLError,
    EnvironmentFailure,
    EpisodeError,
    InfrastructureError,
    UnavailableError,
)
from asyncrl.types import MAX_EXTRACTED, Message

SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.EAGAIN, errno.EDQUOT})
"""Error numbers of a machine that has run out of a resource."""
FRAMES = 4
"""Number of innermost calls of an environment's traceback that an error message keeps."""
OWN_FOLDER = str(Path(__file__).parent)


def sort_failure(name: str, what: str, error: BaseException) -> EpisodeError:
    """Return the episode's error for an exception of method `what` of environment `name`.

    An `EpisodeError` already has its class. A full sandbox or a machine out of memory, descriptors or disk is
    infrastructure; everything else is the environment's own failure. The message ends with the place in the
    environment that raised, since its process may be anywhere.
    """
    if isinstance(error, EpisodeError):
        return error
    message = (
        f"environment {name!r}: {what} raised {type(error).__name__}: {str(error)[:1000]}{_where(error)}"
    )
    scarce = isinstance(error, OSError) and error.errno in SCARCE
    if scarce or isinstance(error, UnavailableError | MemoryError):
        return InfrastructureError(message)
    return EnvironmentFailure(message)


def _where(error: BaseException) -> str:
    """Return the innermost calls of the environment's traceback, one per line."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OWN_FOLDER)
    ]
    return "\n" + "".join(traceback.format_list(frames[-FRAMES:])).rstrip() if frames else ""


def known_class(error: AsyncRLError) -> type[AsyncRLError]:
    """Return the closest class of `asyncrl.errors`, which other processes know."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ == AsyncRLError.__module__)


def check_messages(messages: Any, what: str) -> list[Message]:
    """Return the messages as a list that a tokenizer accepts. Raises `TypeError` unless each is a dict with a
    `role`."""
    found = list(messages)
    for number, message in enumerate(found):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TypeError(f"{what}: a message must be a dict with a role, got {str(message)[:200]}")
        content = message.get("content")
        if isinstance(content, str) and not content.isascii():
            # File names and program output can hold lone surrogates, which nothing downstream accepts.
            found[number] = message | {"content": content.encode("utf-8", "replace").decode()}
    return found


def readable(extracted: Any) -> str:
    """Return what was taken as an answer as text that is short enough to be kept with every episode."""
    return str(extracted).encode("utf-8", "replace").decode()[:MAX_EXTRACTED]


def check_step(step: Any) -> Step:
    """Return the step with plain numbers. Raises `TypeError` or `ValueError` for what breaks the contract."""
    if not isinstance(step, Step):
        raise TypeError(f"step must return a Step, got {type(step).__name__}")
    components = {str(name): _number(value, str(name)) for name, value in step.components.items()}
    # Fields that are not named here pass unchanged.
    return dataclasses.replace(
        step,
        messages=check_messages(step.messages, "step"),
        reward=_number(step.reward, "reward"),
        done=bool(step.done),
        success=None if step.success is None else bool(step.success),
        components=components,
        observation_id=str(step.observation_id),
        truncated=bool(step.truncated),
        agent=None if step.agent is None else str(step.agent),
        extracted=readable(step.extracted),
        tools=None if step.tools is None else check_tools(step.tools, "step.tools"),
        rewards={str(name): _number(value, f"rewards[{name!r}]") for name, value in step.rewards.items()},
        ahead={
            str(name): check_messages(found, f"step.ahead[{name!r}]") for name, found in step.ahead.items()
        },
    )


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        # An integer larger than any float.
        number = math.inf
    # NaN fails the comparison too.
    if not -MAX_REWARD <= number <= MAX_REWARD:
        raise ValueError(f"{name} must be a number up to ±{MAX_REWARD:g}, got {number:g}")
    return number
