"""Tasks of several steps, in one session: which step is played, what the ones before it earned, what comes before one.

The session's files go on from step to step; what runs in it ends with each. The reward is harbor's: of all steps that
were judged the mean, or the last one's.
"""

from __future__ import annotations

from asyncrl.agent_time import own
from asyncrl.envs.terminal.folder import SETUP as SETUP
from asyncrl.envs.terminal.folder import TaskFolder, TaskStep
from asyncrl.envs.terminal.verify import BASH
from asyncrl.sandbox.archive import archive
from asyncrl.sandbox.protocol import WORKDIR, Sandbox

SETUP_S, COPY_S = 60.0, 60.0
SHOWN_CHARACTERS = 500


class Course:
    """A task without steps is one of one step."""

    def __init__(self, task: TaskFolder) -> None:
        self.task = task
        self.works = tuple(step.work for step in task.steps) or (task,)
        self.at = 0
        """The step that is played, from 0."""
        self.rewards: list[float] = []
        """Of the steps that were judged."""
        self._given = 0.0

    @property
    def work(self) -> TaskFolder:
        """What is asked and judged now."""
        return self.works[self.at]

    @property
    def step(self) -> TaskStep | None:
        """The step that is played; None in a task without steps."""
        return self.task.steps[self.at] if self.task.steps else None

    @property
    def is_last(self) -> bool:
        return self.at == len(self.works) - 1

    def earn(self, reward: float) -> bool:
        """The step was judged: go on to the next, and return whether there is one to play."""
        self.rewards.append(reward)
        least = self.step.min_reward if self.step else None
        if self.is_last or (least is not None and reward < least):
            return False
        self.at += 1
        return True

    @property
    def total(self) -> float:
        """The reward of the task as far as it was judged."""
        return self.rewards[-1] if self.task.strategy == "final" else sum(self.rewards) / len(self.rewards)

    def turn_reward(self, done: bool) -> float:
        """Return the reward of the turn that has ended a step. Together those of an episode are `total`: of a mean,
        each step's has its share at once, and the last one's the rest, should steps after it not be played."""
        if done:
            return self.total - self._given
        share = 0.0 if self.task.strategy == "final" else self.rewards[-1] / len(self.works)
        self._given += share
        return share


async def begin(box: Sandbox, step: TaskStep) -> str:
    """Put the files of a step into the session and run its setup; return what went wrong, "" for nothing."""
    if not step.files:
        return ""
    with own():
        packed = archive(step.prepared(), step.executable)
        done = await box.exec(["tar", "-xf", "-"], stdin=packed, timeout_s=COPY_S)
    if done.ok and SETUP in step.files:
        # It may run what the agent has made, so that its time is the agent's.
        done = await box.exec([*BASH, f"{WORKDIR}/{SETUP}"], timeout_s=SETUP_S)
    if done.ok:
        return ""
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-SHOWN_CHARACTERS:]
    return f"step {step.name}: its files and setup.sh: {said or f'exit status {done.returncode}'}"
