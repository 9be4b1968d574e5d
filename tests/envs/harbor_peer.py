"""Judges task folders with harbor's own package, whose interpreter runs this file: its trial, oracle, nop and verifier.

Only the container is of this file: images are built by `podman build` and run by `podman run`, where harbor would call
a compose program. Prints {task: {"oracle": reward, "nop": reward}} as its last line.

    python harbor_peer.py TASKS OUT PODMAN...
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

PODMAN = sys.argv[3:]


class PodmanRun(BaseEnvironment):
    """One container that sleeps, and `podman exec` and `podman cp` into it."""

    @staticmethod
    def type():
        return "podman-run"

    @property
    def capabilities(self):
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self):
        assert (self.environment_dir / "Dockerfile").exists()

    @property
    def _image(self):
        return f"localhost/harbor-{self.environment_name}".lower()

    @property
    def _name(self):
        return f"harbor-{self.session_id}".lower()

    async def _podman(self, *words, timeout_sec=None):
        process = await asyncio.create_subprocess_exec(
            *PODMAN, *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_sec or 300)
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)

    async def _must(self, *words):
        result = await self._podman(*words)
        if result.return_code:
            raise RuntimeError(f"podman {words}: {result.stdout[-1000:]}{result.stderr[-1000:]}")

    async def start(self, force_build):
        await self._must("build", "--network", "none", "-t", self._image, str(self.environment_dir))
        await self._must(
            "run", "-d", "--network", "none", "--name", self._name, self._image, "sleep", "infinity"
        )
        await self._must(
            "exec", self._name, "mkdir", "-p", "/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests",
            "/solution",
        )  # fmt: skip

    async def stop(self, delete):
        await self._podman("rm", "-f", "-t", "0", self._name)

    async def upload_file(self, source_path, target_path):
        await self._must("cp", str(source_path), f"{self._name}:{target_path}")

    async def upload_dir(self, source_dir, target_dir):
        await self._must("cp", f"{source_dir}/.", f"{self._name}:{target_dir}")

    async def download_file(self, source_path, target_path):
        await self._must("cp", f"{self._name}:{source_path}", str(target_path))

    async def download_dir(self, source_dir, target_dir):
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        await self._must("cp", f"{self._name}:{source_dir}/.", str(target_dir))

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        words = [word for name, value in (env or {}).items() for word in ("-e", f"{name}={value}")]
        words += ["-w", cwd] if cwd else []
        return await self._podman("exec", *words, self._name, "bash", "-c", command, timeout_sec=timeout_sec)


async def judged(task, agent, out):
    trial = await Trial.create(
        TrialConfig(
            task=TaskConfig(path=task),
            trials_dir=out,
            agent=AgentConfig(name=agent),
            environment=EnvironmentConfig(import_path="harbor_peer:PodmanRun"),
        )
    )
    result = await trial.run()
    if result.verifier_result is None:
        return repr(result.exception_info)
    return result.verifier_result.rewards["reward"]


async def main():
    tasks = sorted(path.parent for path in Path(sys.argv[1]).glob("*/task.toml"))
    found = {}
    for task in tasks:
        found[task.name] = {
            agent: await judged(task, agent, Path(sys.argv[2])) for agent in ("oracle", "nop")
        }
        print(task.name, found[task.name], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    sys.modules["harbor_peer"] = sys.modules["__main__"]
    asyncio.run(main())
