"""Further policies of a run: their folders, the slots their buffers hand out, and the end of their training."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.launch.processes.supervise import Supervisor
from asyncrl.launch.roles.policy_roles import PolicyRoles
from asyncrl.run.folder import RunFolder, folder_of
from asyncrl.services.buffer.client import BufferClient
from asyncrl.tasks.tasks import FEED_FACTOR, TaskPlan
from asyncrl.types import Task

TICK_S = 0.25
TOKENIZER_FILES = ("tokenizer.json", "chat_template.jinja")


def policy_folder(run: Path, name: str, config: Config) -> Path:
    """Make the folder of a policy and return it. Tools open it like the folder of a run."""
    path = folder_of(run, name)
    try:
        (path / "endpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run folder {path}: cannot be written: {error.strerror}") from error
    RunFolder(path).write_json("config.json", config.model_dump(mode="json"))
    return path


def check_same_tokenizer(main: str, model: str, name: str) -> None:
    """Raise `ConfigError` when a policy's model is known to have another tokenizer than the main policy's."""
    if model == main or not (Path(main).is_dir() and Path(model).is_dir()):
        return
    for file in TOKENIZER_FILES:
        texts = [
            path.read_bytes() if path.exists() else b"" for path in (Path(main) / file, Path(model) / file)
        ]
        if texts[0] != texts[1]:
            raise ConfigError(
                f"policies.{name}.model.path: {model!r} has another {file} than {main!r}; the policies of a run "
                "share one tokenizer and chat template"
            )


def slots(env: str) -> Iterator[Task]:
    """Yield what a further policy's buffer leases: the right to have one group's turns trained."""
    for number in itertools.count():
        yield Task(id=f"slot-{number:08d}", env=env)


class PolicyPlan:
    """Keeps slots planned in a further policy's buffer until its trainer or the run has ended."""

    def __init__(self, roles: PolicyRoles, supervisor: Supervisor) -> None:
        self.roles = roles
        self.supervisor = supervisor
        config = roles.config
        self.client = BufferClient(roles.buffer_address(), roles.credentials.bearer("buffer"))
        self._plan = TaskPlan(slots(config.env.name), 0, FEED_FACTOR * config.buffer.groups_per_step)

    @property
    def done(self) -> bool:
        """True when its training has ended."""
        return self.supervisor.done(self.roles.trainer)

    async def tick(self) -> None:
        """Plan slots. When its training has ended the plan is closed, and groups are played without slots of it."""
        if self.done:
            await self.client.close_plan(abandon=True)
        else:
            await self._plan.feed(self.client)

    async def describe(self) -> None:
        """Describe the job, for engines that join it."""
        await self.client.describe(self.roles.job())

    async def finish(self) -> dict[str, Any]:
        """Let its trainer end with the groups that are there, and return the buffer's last counts.

        The supervisor takes care of a trainer that does not end.
        """
        while not self.done:
            # Repeated, because the slot of a lost group is pending again.
            await self.client.close_plan(abandon=True)
            await asyncio.sleep(TICK_S)
        return await self.client.status()

    async def close(self) -> None:
        await self.client.close()
