"""The settings of an outer optimizer, `[outer]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from asyncrl.config_sections import Section, Seldom, empty_or_url


class OuterConfig(Section):
    """Several runs that train one policy together and synchronise seldom (docs/scaling.md). All keys but `member`,
    `delay` and `mix` must be the same for all of them."""

    url: Seldom[str] = ""
    """Address of `asyncrl serve outer`; empty trains alone."""
    members: Seldom[int] = Field(1, ge=1)
    """How many runs share the tasks. Fewer may take part; the tasks of the others are not played."""
    member: Seldom[int] = Field(0, ge=0)
    """Which of them this run is, from 0 on: it plays each task whose number leaves this remainder."""
    every: Seldom[int] = Field(8, ge=1)
    """Steps between two exchanges of the same weights (H)."""
    method: Seldom[Literal["mean", "gossip"]] = "mean"
    """With whom a run exchanges: `"mean"` with all others (DiLoCo), after which all have the same weights, or
    `"gossip"` with one other at a time, drawn at random (NoLoCo): each keeps weights of its own, which stay near."""
    fragments: Seldom[int] = Field(1, ge=1, le=1024)
    """Parts of the weights that are exchanged at different steps, spread over `every`."""
    delay: Seldom[int] = Field(0, ge=0)
    """Steps after which the result of an exchange enters the weights; training goes on meanwhile. 0 waits for it."""
    mix: Seldom[float] = Field(0.0, ge=0, lt=1)
    """Share of its own weights that a run keeps then (alpha); 0 takes what comes of the exchange."""
    bits: Seldom[Literal[4, 8, 32]] = 32
    """Bits of each value that is exchanged. What rounding takes is added to what is sent next."""
    learning_rate: Seldom[float] = Field(1.0, gt=0)
    """The learning rate of the outer optimizer, SGD with Nesterov momentum. 1 without momentum takes the mean of the
    runs' weights, or of the two in a pair."""
    momentum: Seldom[float] = Field(0.0, ge=0, lt=1)
    """The momentum of the outer optimizer. DiLoCo has 0.9, and a learning rate of 0.7, over hundreds of exchanges."""
    wait_timeout_s: Seldom[float] = Field(600.0, gt=0)
    """Seconds after which an exchange goes on without the runs that are missing, and a run without its exchange."""

    _check_url = field_validator("url")(empty_or_url)

    @model_validator(mode="after")
    def _fits(self) -> OuterConfig:
        if self.member >= self.members:
            raise ValueError(f"member: must be below members={self.members}, got {self.member}")
        if self.fragments > self.every:
            raise ValueError(f"fragments: must be at most every={self.every}, got {self.fragments}")
        if self.delay >= self.every:
            raise ValueError(f"delay: must be below every={self.every}, got {self.delay}")
        if self.mix and not self.delay:
            raise ValueError(f"mix: must be 0 without a delay, got {self.mix:g}")
        if self.method != "gossip":
            return self
        from asyncrl.extensions.outer.algo.gossip import largest_rate

        limit = largest_rate(self.members, self.momentum)
        if self.learning_rate >= limit:
            raise ValueError(
                f"learning_rate: must be below {limit:g} with method='gossip', members={self.members} and "
                f"momentum={self.momentum:g}, or the runs' weights drift apart; got {self.learning_rate:g}"
            )
        return self
