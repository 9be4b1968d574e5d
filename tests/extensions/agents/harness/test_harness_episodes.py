"""Episodes of a program in a sandbox, behind the real gateway over an engine that answers by a script."""

import asyncio
import http.server
import json
import os
import sys
import threading

import numpy as np
import pytest

from asyncrl.chat.tool_formats import load_format
from asyncrl.config import parse_config
from asyncrl.extensions.agents.players import Agents
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.types import FailureClass, Status, Task
from tests.envs.harbor_tasks import TASKS, write_tasks
from tests.extensions.agents.gateway.conftest import ScriptedEngine

CONTEXT = 8192


def call(command):
    return f"<tool_call>\n{json.dumps({'name': 'shell', 'arguments': {'command': command}})}\n</tool_call>"


@pytest.fixture
def folder(tmp_path):
    """A folder with one task: to repair a module until its test passes."""
    task = tmp_path / "tasks" / "adder"
    for name, text in {
        "instruction.md": "test_calc.py fails. Repair /app/calc.py.",
        "environment/calc.py": "def add(a, b):\n    return a - b\n",
        "environment/test_calc.py": "from calc import add\nassert add(2, 2) == 4\n",
        "tests/test_outputs.py": "import subprocess\n\ndef test_add():\n"
        "    code = 'import sys; sys.path.insert(0, \".\"); from calc import add; assert add(2, 3) == 5'\n"
        "    assert subprocess.run(['python3', '-c', code]).returncode == 0\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    return str(tmp_path / "tasks")


@pytest.fixture
def two_ports():
    """Requests that reached a server on this machine, and its address."""
    served = []

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            served.append(self.path)
            self.send_response(200)
            self.end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield served, f"http://localhost:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


class Player:
    """Plays episodes of a recipe with a harness over a scripted engine."""

    def __init__(self, renderer, reply, timeout_s=180.0, **settings):
        self.engine = ScriptedEngine(renderer, reply)
        self.engine.max_model_len = CONTEXT
        self.config = parse_config(
            {
                "env": {"name": "agent", "config": settings},
                "model": {"path": "none"},
                "engine": {"max_model_len": CONTEXT},
                "rollout": {"episode_timeout_s": timeout_s, "max_tokens_per_turn": 1024},
            }
        )
        self.renderer, self.timeout_s = renderer, timeout_s

    def play(self, task):
        async def body():
            agents = Agents(self.config, self.engine, self.renderer, load_format("hermes", "", self.renderer))
            await agents.start()
            try:
                request = EpisodeRequest(task, 0, "e", timeout_s=self.timeout_s)
                return await agents.player(1.0, None).play(request)
            finally:
                await agents.close()
                await LauncherClient.close_shared()

        return asyncio.run(body())


def adder(folder):
    return Task("adder", "agent", 0, "train", {"folder": f"{folder}/adder"})


def script(*turns):
    """Say the turns one after the other, by how many results the conversation shows."""
    return lambda prompt: turns[min(prompt.count("<|im_start|>tool"), len(turns) - 1)]


REPAIR = "sed -i s/-/+/ calc.py"


def test_a_program_repairs_the_folder_and_tests_judge_a_copy_elsewhere(renderer, folder):
    player = Player(renderer, script(call(REPAIR), "done"), harness="bash", tasks=folder)
    (trajectory,) = player.play(adder(folder))
    assert (trajectory.reward, trajectory.success, trajectory.status) == (1.0, True, Status.FINISHED)
    assert trajectory.components == {"tests_passed": 1.0, "exit_code": 0.0}
    # What is trained is what the engine said, token for token.
    said = np.concatenate([player.engine.tokens(call(REPAIR)), player.engine.tokens("done")])
    assert trajectory.token_ids[trajectory.loss_mask].tolist() == said.tolist()


def test_what_is_not_repaired_earns_nothing_and_is_trained(renderer, folder):
    (trajectory,) = Player(renderer, script("done"), harness="bash", tasks=folder).play(adder(folder))
    assert (trajectory.reward, trajectory.status, trajectory.failure) == (0.0, Status.FINISHED, None)
    assert trajectory.loss_mask.any()


def test_it_reaches_the_gateway_alone_and_its_home_is_new_each_time(renderer, folder, two_ports):
    served, url = two_ports
    command = (
        f"curl -s -m 5 {url}; python3 -c 'import urllib.request as u; u.urlopen(\"{url}\", timeout=5)'; "
        "ls -A /tmp/home; touch /tmp/home/left; env | grep -c REWARD"
    )
    player = Player(renderer, script(call(command), "done"), harness="bash", tasks=folder)
    for _ in range(2):
        (trajectory,) = player.play(adder(folder))
        result = json.loads(trajectory.conversation)[3]["content"]
        assert "left" not in result.splitlines() and "HTTP Error 403" in result, result
    assert served == []


def test_a_program_at_its_deadline_is_judged_by_what_it_left(renderer, folder):
    own = f"{REPAIR}; sleep 600"
    player = Player(
        renderer,
        script(call(own)),
        timeout_s=90.0,
        harness="bash",
        tasks=folder,
        environment={"COMMAND_S": "600"},
    )
    (trajectory,) = player.play(adder(folder))
    assert (trajectory.reward, trajectory.status, trajectory.failure) == (1.0, Status.TRUNCATED, None)
    assert "did not end within 15 s" in trajectory.error


def test_an_exit_code_is_an_outcome_and_a_program_that_never_asked_a_failure(renderer, folder, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('command = ["sh", "-c", "exit 3", "{prompt}"]\n')
    (trajectory,) = Player(renderer, script("done"), harness=str(own), tasks=folder).play(adder(folder))
    assert (trajectory.status, trajectory.failure) == (Status.FAILED, FailureClass.ENVIRONMENT)
    assert trajectory.error.startswith("agent: exit code 3")
    own.write_text('command = ["true", "{prompt}"]\n')
    (trajectory,) = Player(renderer, script("done"), harness=str(own), tasks=folder).play(adder(folder))
    assert (trajectory.failure, trajectory.error) == (
        FailureClass.ENVIRONMENT,
        "agent: no call was ever answered",
    )
    ASKS = (
        'program = {{ path = "{path}" }}\n'
        'command = ["sh", "-c", "python3 $0 \\"$1\\"; exit 3", "{{program}}", "{{prompt}}"]\n'
    )
    from asyncrl.extensions.agents.harness.file import harness_path

    own.write_text(ASKS.format(path=harness_path("bash").with_name("bash_loop.py")))
    player = Player(renderer, script(call(REPAIR), "done"), harness=str(own), tasks=folder)
    (trajectory,) = player.play(adder(folder))
    assert (trajectory.reward, trajectory.status, trajectory.components["exit_code"]) == (
        1.0,
        Status.FINISHED,
        3.0,
    )


def test_tests_that_cannot_judge_fail_the_episode_and_earn_nothing(renderer, folder):
    with open(f"{folder}/adder/tests/test_outputs.py", "w") as file:
        file.write("import pytest\n")
    (trajectory,) = Player(renderer, script("done"), harness="bash", tasks=folder).play(adder(folder))
    assert (trajectory.status, trajectory.failure) == (Status.FAILED, FailureClass.ENVIRONMENT)
    assert "judge: EnvironmentFailure" in trajectory.error


@pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")
def test_a_program_works_and_is_judged_in_the_image_of_its_task(renderer, tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = write_tasks(tmp_path / "tasks", names=("compiled", "links"))
    config = {"harness": "bash", "tasks": str(folder), "task_config": {"bases": {"*": "host"}}}
    for name in ("compiled", "links"):
        task = Task(name, "agent", 0, "train", {"folder": str(folder / name)})
        (played,) = Player(renderer, script(call(TASKS[name].solve), "done"), **config).play(task)
        assert (played.reward, played.success) == (1.0, True), played.error
    (nothing,) = Player(renderer, script(call("true"), "done"), **config).play(task)
    assert nothing.reward == 0.0


@pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")
def test_an_image_that_cannot_be_built_is_no_outcome_of_the_program(renderer, tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = write_tasks(tmp_path / "tasks", names=("links",))
    dockerfile = folder / "links" / "environment" / "Dockerfile"
    dockerfile.write_text("FROM x\nWORKDIR /app\nRUN echo no such luck; exit 1\n")
    config = {"harness": "bash", "tasks": str(folder), "task_config": {"bases": {"*": "host"}}}
    task = Task("links", "agent", 0, "train", {"folder": str(folder / "links")})
    (failed,) = Player(renderer, script(call("true"), "done"), **config).play(task)
    assert failed.failure is FailureClass.INFRASTRUCTURE and "no such luck" in failed.error


def test_the_agent_cannot_reach_its_judge(renderer, folder):
    """It leaves modules that the tests' Python would import, and a program that would outlive it."""
    evil = (
        "echo 'import os; os._exit(0)' > subprocess.py; mkdir -p /tmp/home /work/tests; "
        "(setsid sh -c 'while sleep 0.1; do echo 1 > /logs/reward.txt; done' &) ; ls / /tests 2>&1; true"
    )
    (trajectory,) = Player(renderer, script(call(evil), "done"), harness="bash", tasks=folder).play(
        adder(folder)
    )
    assert (trajectory.reward, trajectory.failure) == (0.0, None)


def test_a_generated_repository_is_judged_by_hidden_calls(renderer):
    from asyncrl.envs.repair.env import Repair

    task = Task("r", "agent", 2)
    repaired = Repair(Task("r", "repair", 2)).repository.repaired
    script_of = "\n".join(
        f"cat > {p} <<'EOF-1'\n{text}\nEOF-1" for p, text in repaired.items() if "/" not in p
    )
    for command, reward in ((script_of, 1.0), ("python3 run_tests.py", 0.0)):
        player = Player(renderer, script(call(command), "done"), harness="bash", tasks="repair")
        (trajectory,) = player.play(task)
        assert (trajectory.reward, trajectory.failure) == (reward, None), trajectory


@pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")
def test_an_interpreter_is_shown_in_the_image_of_a_task_at_a_path_that_the_image_lacks(
    renderer, tmp_path, monkeypatch
):
    from asyncrl.extensions.agents.harness import agent
    from asyncrl.extensions.agents.harness.file import harness_path
    from asyncrl.extensions.agents.harness.program import Installed
    from asyncrl.sandbox.protocol import Mount

    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = write_tasks(tmp_path / "tasks", names=("links",))
    loop = harness_path("bash").parent
    mounts = (Mount(str(loop), "/opt/harness"), Mount(sys.base_prefix, "/root/versions/python"))
    monkeypatch.setattr(agent, "install", lambda *given: Installed(mounts, "/root/versions/python/bin", ""))
    own = tmp_path / "own.toml"
    own.write_text(
        'command = ["/root/versions/python/bin/python3", "/opt/harness/bash_loop.py", "{prompt}"]\n'
    )
    config = {"harness": str(own), "tasks": str(folder), "task_config": {"bases": {"*": "host"}}}
    task = Task("links", "agent", 0, "train", {"folder": str(folder / "links")})
    (played,) = Player(renderer, script(call(TASKS["links"].solve), "done"), **config).play(task)
    assert (played.reward, played.success) == (1.0, True), played.error
