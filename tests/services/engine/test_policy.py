"""`asyncrl serve policy`: a checkpoint as benchmarks and agents see it, behind a token."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from asyncrl import process_start
from asyncrl.config_sections import ModelConfig
from asyncrl.env.chat_endpoint import KEY_VARIABLE
from asyncrl.env.protocol import Action
from asyncrl.errors import EnvironmentFailure
from asyncrl.extensions.env_adapters.tau2 import Tau2
from asyncrl.services.engine.policy import policy_command
from asyncrl.services.engine.service import EngineOptions
from asyncrl.types import Task
from tests.benchmark_env import benchmark_python
from tests.credentials import TOKEN
from tests.packages import ImportedWhenUsed
from tests.waiting import running, wait_for_url, wait_until

anthropic = ImportedWhenUsed("anthropic")
openai = ImportedWhenUsed("openai")

CLIENTS = Path(__file__).with_name("benchmark_clients.py")
HELLO = [{"role": "user", "content": "goal north east"}]
TOOL = {
    "type": "function",
    "function": {"name": "go", "parameters": {"type": "object", "properties": {"way": {"type": "string"}}}},
}


@contextmanager
def started(command, log, env=None):
    """A server that is ended with everything it has started."""
    with open(log, "wb") as sink:
        process = process_start.start_process(
            command, {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"} | (env or {}), sink.fileno()
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@pytest.fixture(scope="module")
def plain(tiny_model, tmp_path_factory):
    """vLLM's own server on the same model, started by hand, and a function that waits for its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "tests.services.engine.plain_vllm", "--model", tiny_model),
        *("--served-model-name", "policy", "--port", str(port), "--dtype", "float32", "--enforce-eager"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        # Its default on a CPU, a process for the worker, spins while it waits: a whole core, all the time.
        *("--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor"),
    ]
    log = tmp_path_factory.mktemp("plain") / "log"
    env = {**process_start.IMPORTED_WITH, "VLLM_PLUGINS": "", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as servers:
        # It is forked as ours is, which saves one of its imports.
        patch.setattr(process_start, "FORKED", ((),))
        process = servers.enter_context(started(command, log, env))
        patch.undo()
        url = f"http://127.0.0.1:{port}"

        def healthy():
            try:
                return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
            except OSError:
                return False

        def serving():
            wait_until(healthy, running(process))
            return url

        yield serving


@pytest.fixture(scope="module")
def policy(tiny_model, tmp_path_factory, plain):
    """The address of `asyncrl serve policy`, and its log."""
    folder = tmp_path_factory.mktemp("policy")
    command = [sys.executable, "-m", "asyncrl", "serve", "policy", tiny_model]
    command += ["--ready-file", str(folder / "ready.json")]
    with started(command, folder / "log") as process:
        yield wait_for_url(folder / "ready.json", running(process)), folder / "log"


def test_clients_of_openai_and_anthropic_are_answered(policy):
    url, _ = policy
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN)
    assert [model.id for model in client.models.list()][-1] == "policy"
    said = client.chat.completions.create(model="policy", messages=HELLO, max_tokens=4, tools=[TOOL])
    assert said.usage.completion_tokens <= 4
    scored = client.completions.create(
        model="policy", prompt="goal north", max_tokens=0, echo=True, logprobs=1
    )
    assert scored.choices[0].text == "goal north"
    first, *others = scored.choices[0].logprobs.token_logprobs
    assert first is None and others and all(one < 0 for one in others)
    message = anthropic.Anthropic(base_url=url, api_key=TOKEN).messages.create(
        model="policy", messages=HELLO, max_tokens=4
    )
    assert message.usage.output_tokens <= 4


def test_every_route_but_the_health_check_asks_for_the_token(policy):
    url, _ = policy
    assert httpx.get(f"{url}/healthz").status_code == 200
    for path in ("/v1/models", "/metrics", "/version", "/openapi.json"):
        assert httpx.get(url + path).status_code == 401, path
    for path in ("/v1/completions", "/invocations", "/tokenize"):
        refused = httpx.post(url + path, json={}, headers={"Authorization": "Bearer wrong"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error"), path
    key = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.post(f"{url}/pause", headers=key).status_code == 404, "no route changes the server"
    assert httpx.get(f"{url}/v1/models", headers=key | {"Origin": "http://elsewhere"}).status_code == 403


def test_its_model_plays_the_user_of_a_task_of_tau2s(policy, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, TOKEN)
    user = {"user_url": f"{policy[0]}/v1", "user_options": {"max_tokens": 8, "temperature": 1.0, "seed": 1}}
    env = Tau2(
        Task("t", "tau2", data={"task_id": "ACTION"}),
        domain="tests.extensions.env_adapters.tau2_library:TerseDomain",
        max_turns=2,
        **user,
    )
    opening = env.reset()
    step = env.step(Action("Card?"))
    assert [message["role"] for message in env.user.history] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert opening[1] == {"role": "user", "content": env.user.history[2]["content"]}
    assert opening[1]["content"]
    assert step.messages == [{"role": "user", "content": env.user.history[4]["content"]}]

    monkeypatch.setenv(KEY_VARIABLE, "wrong")
    with pytest.raises(EnvironmentFailure, match="the key is read from ASYNCRL_SIMULATOR_KEY"):
        env.step(Action("Card?"))


def test_the_start_message_shows_a_call_that_works_and_not_the_token(policy, tmp_path):
    _, log = policy
    text = log.read_text()
    assert TOKEN not in text
    (example,) = [line.strip() for line in text.splitlines() if line.strip().startswith("curl")]
    done = subprocess.run(["bash", "-c", example], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.slow
def test_benchmarks_find_the_same_through_it_as_through_plain_vllm(
    policy, plain, tiny_model, tmp_path, pytestconfig
):
    python = benchmark_python(pytestconfig.cache.mkdir("benchmark-clients"))
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ASYNCRL_TOKEN")}
    env |= {"OPENAI_API_KEY": TOKEN, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    env |= {"XDG_DATA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [python, str(CLIENTS), str(tmp_path), tiny_model, f"policy={policy[0]}", f"plain={plain()}"],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    ours = found["policy"]
    # Kernels that normalise differently round differently.
    likely, plainly = (np.array(found[name]["lm_eval"].pop("loglikelihoods")) for name in ("policy", "plain"))
    np.testing.assert_allclose(likely, plainly, rtol=0, atol=1e-5)
    assert found["policy"] == found["plain"]
    # The model is random: what counts is that every sample was played and scored.
    assert likely.shape == (16, 4) and all(len(set(choices)) > 1 for choices in likely.round(4).tolist())
    assert len(ours["lm_eval"]["texts"]) == 16
    assert all(ours["lm_eval"]["texts"])
    for provider in ("openai", "responses", "anthropic"):
        texts = ours[provider]["texts"]
        assert len(texts) == 16 and all(texts), provider
        assert ours[provider]["accuracy"] == sum("o" in text.lower() for text in texts) / 16


@pytest.mark.parametrize(
    ("formats", "parsers"),
    [
        (("hermes", ""), ["--tool-call-parser", "hermes"]),
        (("llama", "think"), ["--tool-call-parser", "llama3_json", "--reasoning-parser", "qwen3"]),
        (("harmony", ""), ["--tool-call-parser", "openai", "--reasoning-parser", "openai_gptoss"]),
        (("glm45", "glm45"), ["--tool-call-parser", "glm45", "--reasoning-parser", "glm45"]),
    ],
)
def test_formats_of_the_recipe_become_vllms_parsers(formats, parsers):
    model = ModelConfig(path="m", tool_format=formats[0], reasoning_format=formats[1])
    command = policy_command(EngineOptions("m"), "127.0.0.1", 1, model)
    start = command.index("--tool-call-parser")
    assert command[start : start + len(parsers)] == parsers
    assert ("--reasoning-parser" in command) == (len(parsers) == 4)


def test_the_chat_template_and_its_variables_are_those_of_the_run():
    model = ModelConfig(path="m", chat_template="my.jinja", chat_template_args={"enable_thinking": False})
    command = policy_command(EngineOptions("m"), "127.0.0.1", 1, model)
    assert command[command.index("--chat-template") + 1] == "my.jinja"
    assert command[command.index("--default-chat-template-kwargs") + 1] == '{"enable_thinking": false}'
