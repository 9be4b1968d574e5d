"""The error tree. A bad rollout is data (`FailureClass` in `types`); a bug is a crash; these are the rest.

AsyncRLError
├── ConfigError        the user's configuration or command line is wrong
├── InputError         a file or a message from outside is malformed
├── StaleError         something older than the staleness limit was about to be used
├── ConflictError      a message contradicts the state it refers to (an expired lease, a wrong step)
│   └── QuarantineError  a worker is quarantined: its groups are refused
├── DeadlineError      a wait ended by its deadline
├── StopError          the run ends by its own configuration; a restart would not help
├── UnavailableError   the other side cannot serve now; the same call may succeed later
│   └── OutageError    a disk, database, or what else the other side stands on fails; clients repeat the call
│       └── StorageError  a disk is full, read-only or over quota; the call may succeed once there is room
└── EpisodeError       an episode failed; carries the class that decides what training does with it
    ├── AgentError
    ├── EnvironmentFailure
    ├── InfrastructureError
    └── JudgeError
"""

from __future__ import annotations

import difflib

from asyncrl.types import FailureClass


class AsyncRLError(Exception):
    """Base of every error that asyncrl raises on purpose. The message says what to do next."""


class ConfigError(AsyncRLError):
    """The configuration or the command line is wrong. Names the key, the value and what is allowed."""


class InputError(AsyncRLError):
    """A file or message from outside is malformed. Nothing was changed."""


class StaleError(AsyncRLError):
    """A token older than `max_staleness` versions was about to be trained on."""


class ConflictError(AsyncRLError):
    """The message contradicts the receiver's state: an expired lease, a wrong step index, a closed session."""


class QuarantineError(ConflictError):
    """The worker is quarantined and gets no lease. The message says why; repeating the call does not help."""


class DeadlineError(AsyncRLError):
    """A wait reached its deadline."""


class StopError(AsyncRLError):
    """The run ends by its own configuration, such as `train.on_poison = "stop"`."""


class UnavailableError(AsyncRLError):
    """The other side is full, starting or gone. The same call may succeed later."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OutageError(UnavailableError):
    """What the other side stands on fails: its disk, its database's file, its file descriptors, its memory. The request
    is not at fault, so that clients repeat it for as long as they do where nobody answers."""


class StorageError(OutageError):
    """A disk is full, read-only or over quota. The message names the file or folder; a restart does not help."""


class EpisodeError(AsyncRLError):
    """An episode failed. `failure` decides what training does with it."""

    failure: FailureClass


class AgentError(EpisodeError):
    """The policy did something after which the episode cannot continue."""

    failure = FailureClass.AGENT


class EnvironmentFailure(EpisodeError):
    """The environment raised or broke its contract."""

    failure = FailureClass.ENVIRONMENT


class InfrastructureError(EpisodeError):
    """A process, connection or machine failed. Never becomes a reward."""

    failure = FailureClass.INFRASTRUCTURE


class JudgeError(EpisodeError):
    """A judge or reward model gave no usable score. Never becomes a reward."""

    failure = FailureClass.JUDGE


def did_you_mean(word: str, allowed: object) -> str:
    """The end of an error message: the closest allowed word, and all of them."""
    words = sorted(map(str, allowed))  # type: ignore[call-overload]
    close = difflib.get_close_matches(word, words, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "." if words else ""
    return f"{hint} Allowed: {', '.join(words)}" if words else hint
