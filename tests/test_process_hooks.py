"""What a service's environments may find among its variables."""

import gc
import os

from asyncrl.process_hooks import collecting_no_garbage, texts, withhold_secrets


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


def test_no_garbage_is_collected_during_an_import_and_what_it_made_is_not_looked_through_again():
    was_frozen, collections = gc.get_freeze_count(), []
    gc.callbacks.append(note := lambda phase, _: collections.append(phase))
    try:
        with collecting_no_garbage():
            made = [[] for _ in range(10 * gc.get_threshold()[0])]
            assert (collections, gc.isenabled()) == ([], False)
        assert gc.get_freeze_count() >= was_frozen + len(made)
        assert gc.isenabled()
    finally:
        gc.callbacks.remove(note)
