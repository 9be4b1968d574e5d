"""The policy at one version as a judge: a real engine of its own, started as a run and as a user starts it."""

import asyncio
import json
from argparse import Namespace

import pytest
import torch

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.judge.judging import JUDGE_ENGINE, judging
from asyncrl.extensions.judge.questions import OVERALL, JudgeRequest
from asyncrl.extensions.judge.serving import start_engine
from asyncrl.launch.machines.placement import Placement
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.launch.roles.roles import start_beside_workers
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save
from asyncrl.types import Task
from tests.extensions.judge.reward_models import CORPUS, conversation

pytestmark = pytest.mark.slow
CONTEXT = 1024
TEXTS = ["Rate it.", "a b c d", "Is it so?\n[assistant] yes", "0 1 2 3 4 5\nNumbers."]


def says_seven(folder):
    """Save a language model that answers whatever it is asked with 7."""
    tokenizer = build_tokenizer(CORPUS * 20, 400, CONTEXT)
    model = build_model(len(tokenizer), 64, 2, 2, CONTEXT, tokenizer.eos_token_id, seed=0)
    rows = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}, {"role": "assistant", "content": "7"}], tokenize=False
        )
        for text in TEXTS
    ]
    given = tokenizer(rows, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
    labels = given["input_ids"].clone()
    labels[:, :-3] = -100
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(40):
        loss = model(**given, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(folder, model, tokenizer)
    return str(folder)


def configuration(model, **judge):
    return parse_config(
        {
            "model": {"path": model},
            "env": {"name": "gridworld"},
            "run": {"threads": 1},
            "engine": {"max_model_len": 256, "max_num_seqs": 4},
            "judge": {"kind": "policy", **judge},
        }
    )


def test_the_model_that_a_run_starts_from_judges_its_episodes(tmp_path):
    config = configuration(says_seven(tmp_path / "model"))
    run = tmp_path / "run"
    group = ProcessGroup(run)
    (run / "config.json").write_text(config.model_dump_json())

    async def scores(url):
        bearer = group.credentials.issue("worker", "w").bearer
        judge = judging(WorkerContext(config, {JUDGE_ENGINE: url}, bearer)).judge
        asked = [JudgeRequest(Task("t", "e", 0), tuple(conversation(one)), 0.0) for one in ("yes", "a b c")]
        try:
            return await asyncio.gather(*(judge.score(one) for one in asked))
        finally:
            await judge.close()

    try:
        process = start_beside_workers(group, config, run, Placement(), model=config.model.path)[JUDGE_ENGINE]
        found = asyncio.run(scores(group.wait_ready(process, 300.0)))
    finally:
        group.stop()
    assert [one.numbers for one in found] == [{OVERALL: 0.7}] * 2


def test_an_evaluation_that_is_not_told_which_version_judges_says_so(tmp_path):
    config = configuration("m")
    group = ProcessGroup(tmp_path)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    try:
        process = start_beside_workers(group, config, tmp_path, Placement())[JUDGE_ENGINE]
        process.popen.wait(300)
        assert "needs judge.model, which names the version that judges" in process.tail()
    finally:
        group.stop()


def test_a_judge_whose_reply_leaves_no_room_for_what_it_judges_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT}))
    config = configuration(str(tmp_path), max_tokens=CONTEXT)
    args = Namespace(model=str(tmp_path), recipe="", folder=tmp_path)
    with pytest.raises(
        ConfigError, match=r"judge\.max_tokens: must be below 1024, the tokens that .*; got 1024"
    ):
        start_engine(args, config, None)
