"""From a hub and back to it, from the installed package: a run trains on rows by their name, and its model is pushed.

The hub is a stand-in on this machine; the client is the real one.
"""

from __future__ import annotations

import json

import pytest

from tests.docs.installed import install
from tests.rows.hub_server import TOKEN, Hub

RECIPE = """
base = "tiny_cpu"
[data]
train = "me/sums"
heldout = { path = "me/sums", split = "test" }
reward = "math"
[sft]
episodes = 100
steps = 10
[rollout]
group_size = 4
[buffer]
groups_per_step = 2
drop_no_signal = false
[train]
num_steps = 1
[eval]
tasks = 2
"""


@pytest.fixture
def hub(tmp_path):
    rows = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(5) for b in range(4)]
    folder = tmp_path / "hub" / "me" / "sums" / "main"
    folder.mkdir(parents=True)
    for name, some in (("train", rows[:16]), ("test", rows[16:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    made = Hub(tmp_path / "hub", private=("me/sums",))
    yield made
    made.close()


def test_a_run_on_the_private_rows_of_a_hub_is_pushed_back_as_a_model(hub, tmp_path):
    installed, mine = install(), tmp_path / "mine"
    mine.mkdir()
    (mine / "mine.toml").write_text(RECIPE)
    variables = {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip

    refused = installed.run(["asyncrl", "train", "mine.toml"], mine, variables=variables)
    assert refused.returncode == 2 and "me/sums" in refused.stdout and "HF_TOKEN" in refused.stdout
    assert not (mine / "runs").exists()

    variables["HF_TOKEN"] = TOKEN
    trained = installed.run(["asyncrl", "train", "mine.toml", "run.name=sums"], mine, variables=variables)
    assert trained.returncode == 0, trained.stdout
    assert "data: 16 rows to train on, 4 held out" in trained.stdout

    pushed = installed.run(["asyncrl", "push", "runs/sums", "me/adder"], mine, variables=variables)
    assert pushed.returncode == 0, pushed.stdout
    files = hub.models["me/adder"]
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    card = files["README.md"].decode()
    assert "me/sums" in card and "learning_rate" in card
    assert hub.commits == ["Step 1"]
