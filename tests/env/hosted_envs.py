"""Environments that do what a word tells them, most of it bad."""

import asyncio
import dataclasses
import os
import threading
import time
from pathlib import Path

from asyncrl.env.protocol import Env, Step
from asyncrl.errors import AgentError, EnvironmentFailure, InfrastructureError

HERE = "tests.env.hosted_envs"
CROWD = 64
MEETING = threading.Barrier(CROWD)


class OwnError(InfrastructureError):
    """Of a user's environment, made from two numbers."""

    def __init__(self, here, there):
        super().__init__(f"lost between {here} and {there}")


class OwnFailure(EnvironmentFailure):
    """Also of a user's environment."""


class InPlace(Env):
    """Runs on the event loop of whoever hosts it."""

    blocking = False
    closed = 0

    def __init__(self, task, refuse=False, fail_reset=False):
        super().__init__(task)
        if refuse:
            raise ValueError("refuse must be false")
        self.fail_reset, self.steps = fail_reset, 0

    def reset(self):
        if self.fail_reset:
            raise RuntimeError("no level left")
        return [say(os.getpid())]

    def step(self, action):
        self.steps += 1
        word, _, rest = action.content.partition(" ")
        answer = getattr(self, f"on_{word}", None)
        return Step([say(f"{word} {self.steps} {os.getpid()}")]) if answer is None else answer(rest)

    def close(self):
        type(self).closed += 1

    def on_raise(self, rest):
        raise KeyError("lost key")

    def on_agent(self, rest):
        raise AgentError("no such tool")

    def on_infrastructure(self, rest):
        raise InfrastructureError("the simulator's machine is gone")

    def on_broken(self, rest):
        raise OwnFailure("the level file is broken")

    def on_own(self, rest):
        raise OwnError(1, 2)

    def on_scarce(self, rest):
        raise OSError(24, "Too many open files")

    def on_nonsense(self, rest):
        return {"reward": 1}

    def on_endless(self, rest):
        return Step(reward=float("nan"))

    def on_object(self, rest):
        return Step([{"role": "user", "content": object()}])

    def on_file(self, rest):
        return Step([say("caf\udce9")])

    def on_variable(self, rest):
        return Step([say(os.environ.get(rest, "unset"))])

    def on_everything(self, rest):
        return Step(**{field.name: EVERYTHING[field.name] for field in dataclasses.fields(Step)})

    def on_kill(self, rest):
        os.kill(os.getpid(), 9)

    def on_exit(self, rest):
        os._exit(3)

    def on_spin(self, rest):
        while True:
            pass

    def on_sleep(self, rest):
        time.sleep(float(rest))
        return Step([say("woke up")])

    def on_wait(self, rest):
        """Wait for a file, for 30 s at most."""
        deadline = time.monotonic() + 30
        while not Path(rest).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return Step([say("found" if Path(rest).exists() else "not found")])

    def on_meet(self, rest):
        """Wait until as many as the crowd has are in this method at once."""
        MEETING.wait(30)
        return Step([say("met")])


class OnThread(InPlace):
    """The same on a thread of its own."""

    blocking = True


class Needy(InPlace):
    """What its agent starts may take hours."""

    def least_step_s(self):
        return 10_000.0


class SlowToOpen(InPlace):
    """Takes a second for its reset."""

    blocking = True

    def reset(self):
        time.sleep(1.0)
        return super().reset()


class Asynchronous(Env):
    """Lets a helper thread of the event loop do the waiting."""

    async def reset(self):
        return []

    async def step(self, action):
        await asyncio.to_thread(MEETING.wait, 30)
        return Step([say("met")])


EVERYTHING = {
    "messages": [{"role": "user", "content": "x"}],
    "reward": 0.5,
    "done": True,
    "success": False,
    "components": {"goal": 1.0},
    "observation_id": "place",
    "matches": True,
    "extracted": "42",
    "ahead": {"third": [{"role": "user", "content": "y"}]},
    "truncated": True,
    "agent": "second",
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    "rewards": {"second": 0.25},
}
"""A value that is not the default for each field of a step."""


def say(content):
    return {"role": "user", "content": str(content)}
