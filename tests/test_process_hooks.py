"""What a service's environments may find among its variables."""

import os

from asyncrl.process_hooks import texts, withhold_secrets


def test_secrets_are_withheld_but_for_those_that_are_named(monkeypatch):
    secret = ["OPENAI_API_KEY", "HF_TOKEN", "ASYNCRL_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "GITHUB_PAT_TOKEN",
              "APIKEY", "GOOGLE_APPLICATION_CREDENTIALS", "KEY"]  # fmt: skip
    plain = ["PYTHONPATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "KEYBOARD",
             "VLLM_LOGGING_LEVEL", "ASYNCRL_CACHE"]  # fmt: skip
    for name in (*secret, *plain, "SEARCH_KEY"):
        monkeypatch.setenv(name, "x")
    config = {"servers": [{"url": "http://x", "token_env": "SEARCH_KEY"}]}
    withhold_secrets({*texts(config), "HF_TOKEN"})
    assert not ({*secret} - {"HF_TOKEN"}) & {*os.environ}
    assert {*plain, "SEARCH_KEY", "HF_TOKEN"} <= {*os.environ}
    monkeypatch.undo()
