"""Tinker's own SDK against a server process, with its trainer and its vLLM engine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.benchmark_env import benchmark_python
from tests.credentials import AUTHORIZED, TOKEN
from tests.waiting import START_S, wait_until

pytestmark = pytest.mark.slow
PACKAGES = (
    "tinker==0.38.0", "tinker-cookbook==0.6.1", "h2==4.4.1", "hpack==4.2.0", "hyperframe==6.1.0", "orjson==3.13.0",
    "zstandard==0.25.0", "blobfile==3.3.0", "chz==0.4.0", "tml-renderers==0.2.1", "pyrage==1.4.0", "pylatexenc==2.11",
    "pycryptodomex==3.24.2", "lxml==6.1.3",
)  # fmt: skip
"""The SDK, its cookbook, and what they import that is not beside the lock."""
HERE = Path(__file__).parent
TOKENS = [5, 6, 7, 8, 9, 4, 3]


class Server:
    """One `asyncrl serve tinker`, which may be killed and started again at its address."""

    def __init__(self, folder, model, name="tiny", port=0, rank=8, options=()):
        self.folder, self.model, self.name, self.port, self.rank = folder, model, name, port, rank
        self.options = options
        self.start()

    def start(self):
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "asyncrl", "serve", "tinker", "--model", self.model]
        command += [
            "--model-name",
            self.name,
            "--state",
            str(self.folder / "state"),
            "--lora-rank",
            str(self.rank),
        ]
        command += ["--port", str(self.port), "--ready-file", str(ready), *self.options]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | {"ASYNCRL_TOKEN": TOKEN}, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while not ready.is_file():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.1)
        self.url = json.loads(ready.read_text())["url"]
        self.port = int(self.url.rpartition(":")[2])

    def log(self):
        return (self.folder / "log").read_text()[-3000:]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)

    def script(self, python, *words, cwd=None, **variables):
        env = os.environ | {
            "TINKER_BASE_URL": self.url,
            "TINKER_API_KEY": f"tml-{TOKEN}",
            "PYTHONWARNINGS": "ignore",
            **variables,
        }
        # Into a file: a script that warns while nobody reads would stop at a full pipe.
        with open(self.folder / "errors", "w") as errors:
            return subprocess.Popen(
                [python, "-P", *words], env=env, cwd=cwd or self.folder, stdout=subprocess.PIPE, stderr=errors,
                text=True,
            )  # fmt: skip

    def errors(self):
        return (self.folder / "errors").read_text()[-3000:]

    def run(self, python, *words, cwd=None, **variables):
        """Run a script to its end; return its output. variables: of its environment."""
        process = self.script(python, *words, cwd=cwd, **variables)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, f"{self.errors()}\n{self.log()}"
        return output


@pytest.fixture(scope="module")
def python(pytestconfig):
    return benchmark_python(pytestconfig.cache.mkdir("tinker"), PACKAGES, dependencies=False)


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("tinker"), tiny_model)
    yield made
    made.stop()


def reference(model, tokens):
    ids = torch.tensor([list(tokens)])
    with torch.no_grad():
        scores = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1)
    return scores.gather(1, ids[0, 1:, None])[:, 0].numpy()


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_a_script_trains_samples_saves_and_loads(python, server, tiny_model):
    from peft import PeftModel

    found = json.loads(server.run(python, str(HERE / "sdk_whole.py")))
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    untrained = reference(plain, TOKENS)
    close(found["untrained"][0], untrained)
    close(found["untrained"][1], reference(plain, TOKENS[:4]))
    close(found["base"][1:], untrained)
    assert found["losses"][0] > found["losses"][1] > found["losses"][2]
    policy = found["path"].split("/")[2]
    # What is trained, what samples and what transformers computes of the files agree.
    trained = PeftModel.from_pretrained(plain, str(server.folder / "state" / "adapters" / policy / "two"))
    after = reference(trained, TOKENS)
    close(found["trained"][0], after)
    close(found["scored"][1:], after)
    close(found["prompt"][1:], after[:2])
    assert found["scored"][0] is None and found["again"] == found["scored"]
    assert found["loaded"] == found["trained"]
    assert len({tuple(tokens) for tokens, _, _ in found["samples"]}) > 1
    for tokens, logprobs, reason in found["samples"]:
        assert (len(tokens), reason) == (6, "length")
        close(logprobs, reference(trained, TOKENS[:3] + tokens)[2:])
    assert np.shape(found["likeliest"]) == (6, 2)
    whole, by_id, reason, *by_text = found["stopped"]
    until = whole[: whole.index(whole[1]) + 1]
    assert (by_id, reason) == (until, "stop") and by_text in ([], [until])
    assert found["custom"]["squares"] == pytest.approx(
        sum((np.asarray(one) ** 2).sum() for one in found["trained"])
    )
    # With the behavior policy's own log-probabilities all ratios are 1.
    assert found["importance_sampling"] == found["ppo"] == pytest.approx(-3.0)
    assert found["cispo"] == pytest.approx(-0.5 * sum(found["trained"][0]), rel=1e-4)
    one, two = f"tinker://{policy}/weights/one", f"tinker://{policy}/sampler_weights/two"
    assert (found["checkpoints"], found["left"]) == ([two, one], [two])
    assert found["run"] == ["tiny", 4, True]
    unknown, large, loss = found["refused"]
    assert "this server has 'tiny', got 'other'" in unknown
    assert "must be at most 8 (--lora-rank), got 64" in large
    assert (
        "data[0].weights: the loss does not read it" in loss or "data[0].logprobs: the loss needs it" in loss
    )
    # The session is finished: what was not saved is gone.
    assert found["closed"]
    wait_until(lambda: not list((server.folder / "state" / "policies").glob("*/state-*")))
    assert (server.folder / "state" / "adapters" / policy / "two").is_dir()


def test_checkpoints_are_published_copied_and_downloaded_as_adapters_of_peft(
    python, server, tiny_model, tmp_path
):
    from peft import PeftModel

    found = json.loads(server.run(python, str(HERE / "sdk_checkpoints.py"), str(tmp_path)))
    assert found["public"] == [True, True, False, False]
    assert found["types"] == ["external", "training"]
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    adapter = PeftModel.from_pretrained(plain, str(tmp_path))
    close(found["trained"], reference(adapter, TOKENS))
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    assert found["copied"].startswith("tinker://copy-") and found["loaded"] == found["trained"]
    close(found["first"], found["trained"])
    close(found["second"], found["second_trained"])
    assert not np.allclose(found["first"], found["second"], atol=1e-3)
    secret, again, kind, deleted = found["refused"]
    assert "age_encryption_recipients: this server encrypts nothing" in secret
    assert f"there is a checkpoint {found['exported']}" in again and "must be of weights" in kind
    assert "there is no checkpoint" in deleted
    url = next(iter(found["urls"].values()))
    assert httpx.get(url).status_code == 200
    assert httpx.get(url.replace("expires=", "expires=9")).status_code == 400
    assert httpx.get(url.partition("?")[0]).status_code == 400


def test_the_sdks_own_command_downloads_a_checkpoint(python, server, tiny_model, tmp_path):
    from peft import PeftModel

    found = json.loads(server.run(python, str(HERE / "sdk_checkpoints.py"), str(tmp_path)))
    server.run(
        python, "-m", "tinker.cli", "checkpoint", "download", found["path"], "-o", str(tmp_path / "down")
    )
    (folder,) = (tmp_path / "down").iterdir()
    adapter = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32), str(folder)
    )
    close(found["second_trained"], reference(adapter, TOKENS))
    # The session that it made for this is finished, and what it exported deleted.
    assert not list((server.folder / "state" / "policies").glob("*/external_weights/download"))


def test_a_caller_without_the_token_is_refused_and_a_wrong_body_named(server):
    def post(path, key=f"tml-{TOKEN}", /, **body):
        return httpx.post(f"{server.url}/api/v1/{path}", json=body, headers={"X-API-Key": key})

    for key in ("tml-wrong-token-123456", TOKEN, ""):
        assert post("create_session", key).status_code == 401
    assert httpx.get(f"{server.url}/api/v1/healthz").json() == {"status": "ready"}
    assert "session_id: there is no session 'x'" in post("session_heartbeat", session_id="x").text
    assert "there is no policy 'x'" in post("unload_model", model_id="x").text
    session = post("create_session").json()["session_id"]
    made = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 2}}
    assert post("retrieve_future", **post("create_model", **made).json()).json()["model_id"]
    # The SDK counts the sampler on each time that it sends the same request again.
    snapshots = [
        post(
            "save_weights_for_sampler",
            model_id=f"{session}:train:0",
            seq_id=1,
            sampling_session_seq_id=number,
        )
        for number in (0, 5)
    ]
    assert snapshots[0].json() == snapshots[1].json()
    found = post("retrieve_future", **snapshots[1].json()).json()
    assert found["sampling_session_id"] == f"{session}:sample:0-1"
    for _ in range(2):
        assert post(f"sessions/{session}/finish", reason={"type": "success"}).status_code == 200
    # By which the SDK ends its signs of life.
    assert post("session_heartbeat", session_id=session).status_code == 410
    assert post("retrieve_future", request_id="x/1").status_code == 410
    answer = post("optim_step", model_id="x", seq_id=1, adam_params={"learning_rate": -1})
    assert answer.status_code == 400 and "adam_params.learning_rate" in answer.text
    answer = post("save_weights", model_id="x", seq_id=1, path="../../etc")
    assert answer.status_code == 400 and "path" in answer.text
    deadline = time.monotonic() + START_S
    while not (state := httpx.get(f"{server.url}/state", headers=AUTHORIZED).json())["engine_serves"]:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.2)
    assert state["model"] == "tiny"


def test_twenty_clients_sample_while_one_trains(python, server):
    found = json.loads(server.run(python, str(HERE / "sdk_many.py")))
    assert (found["answered"], found["failed"]) == (100, [])
    assert found["steps"] >= 3


KEYS = """
[alice]
key = "alice-has-this-key"
training_clients = 1
trained_tokens_a_day = 12
sampled_tokens_a_day = 8
[bob]
key = "bob-has-another-key"
requests_in_flight = 1
"""


def test_clients_with_keys_have_their_quotas_and_see_what_is_theirs(python, tiny_model, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    server = Server(tmp_path, tiny_model, options=("--keys", str(keys)))
    try:
        words = ("tml-alice-has-this-key", "tml-bob-has-another-key")
        found = json.loads(server.run(python, str(HERE / "sdk_clients.py"), *words))
        state = httpx.get(f"{server.url}/state", headers=AUTHORIZED).json()
        refused = httpx.get(f"{server.url}/state", headers={"X-API-Key": words[0]})
    finally:
        server.stop()
    # The SDK takes a 403 as final, and sends a 429 again.
    for name, why in (
        ("second", "alice has 1 training clients already (training_clients)"),
        ("trained", "alice has used up its trained_tokens_a_day: 12 of 12"),
        ("sampled", "alice has used up its sampled_tokens_a_day: 8 of 8"),
    ):
        assert found[name].startswith("PermissionDeniedError") and why in found[name]
    assert "there is no policy" in found["run"] and "there is no checkpoint" in found["load"]
    assert "there is no checkpoint" in found["delete"] and found["runs"] == 0
    assert ":train:" in found["public"] and found["answered"] == [4] * 4
    assert found["stranger"].startswith("AuthenticationError")
    assert (state["clients"]["alice"]["tokens_trained"], state["clients"]["bob"]["tokens_sampled"]) == (
        12,
        16,
    )
    assert refused.status_code == 403


KILLED_AT = ("sent 0", "gradient 1", "both 2", "step 3", "both 4")


@pytest.mark.timeout(1800)
def test_a_server_that_is_killed_five_times_ends_where_an_undisturbed_one_does(python, tiny_model, tmp_path):
    server = Server(tmp_path, tiny_model)
    try:
        undisturbed = server.run(python, str(HERE / "sdk_steps.py"), "7").split()[-1]
        script, seen = server.script(python, str(HERE / "sdk_steps.py"), "7"), []
        for line in script.stdout:
            seen.append(line.strip())
            if seen[-1] in KILLED_AT:
                server.kill()
                server.start()
        assert script.wait() == 0, server.errors()
        assert set(KILLED_AT) <= set(seen)
        first, second = (
            load_file(
                server.folder / "state" / "policies" / path.split("/")[2] / "weights" / "end.safetensors"
            )
            for path in (undisturbed, seen[-1])
        )
        assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    finally:
        server.stop()
