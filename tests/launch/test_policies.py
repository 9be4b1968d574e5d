"""Two policies in one run: each learns from its own turns, in its own process, and both end with the run."""

import asyncio
import json
import shutil
import sqlite3

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.launch.policies import check_same_tokenizer
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics import read_metrics
from tests.runs import CACHE, processes_of, weight_folders

pytestmark = pytest.mark.slow
STEPS, GROUPS, SIZE = 5, 4, 4


def recipe(**policy):
    return {
        "run": {"threads": 1},
        "model": {"path": "sft"},
        "env": {"name": "tests.launch.relay:Relay"},
        "engine": {"max_model_len": 128, "max_num_seqs": 64},
        "rollout": {"group_size": SIZE, "max_tokens_per_turn": 8, "lease_s": 20.0},
        "buffer": {"groups_per_step": GROUPS, "max_staleness": 1, "drop_no_signal": False},
        "algo": {"preset": "grpo"},
        "train": {"num_steps": STEPS, "learning_rate": 1e-4, "checkpoint_every": 1},
        "eval": {"tasks": 8},
        "sft": {"hidden_size": 64, "num_layers": 2, "episodes": 300, "steps": 60},
        "policies": {"helpers": {"agents": ["helper"], **policy}},
    }  # fmt: skip


class Disturbed(TrainRun):
    """Kills one process once the further policy has trained a step: its trainer, unless a test says which."""

    async def _train(self, client, tasks):
        monkey = asyncio.ensure_future(self._kill())
        try:
            await super()._train(client, tasks)
        finally:
            monkey.cancel()

    async def _kill(self):
        while not read_metrics(self.roles.policies["helpers"].folder):
            await asyncio.sleep(0.05)
        self.victim().popen.kill()

    def victim(self):
        return self.roles.policies["helpers"].trainer


class EngineLost(Disturbed):
    """Kills the only engine."""

    def victim(self):
        return self.roles.main.engines[0]


def train(kind, recipe, folder):
    with pytest.MonkeyPatch.context() as patch, RunFolder(folder) as run_folder:
        patch.setenv("ASYNCRL_CACHE", CACHE)
        run = kind(parse_config(recipe), run_folder)
        return folder, run.run(), run.roles.main.model


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(
        Disturbed,
        recipe(train={"learning_rate": 5e-5}),
        tmp_path_factory.mktemp("policies") / "relay",
    )


@pytest.fixture(scope="module")
def sharing(tmp_path_factory):
    """A run whose policies train adapters of different ranks over one base model."""
    return train(
        EngineLost,
        recipe(lora={"rank": 2}) | {"lora": {"rank": 4, "alpha": 8}},
        tmp_path_factory.mktemp("sharing") / "relay",
    )


def rows_of(folder):
    paths = sorted((folder / "trajectories").glob("*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_both_policies_train_all_their_steps_within_their_bounds(finished):
    folder, summary, _ = finished
    helpers = summary["policies"]["helpers"]
    assert (summary["steps"], summary["groups"]["trained"]) == (STEPS, STEPS * GROUPS)
    assert helpers["steps"] >= STEPS - 1
    assert GROUPS * (helpers["steps"] - 1) < helpers["groups"]["trained"] <= GROUPS * helpers["steps"]
    assert summary["staleness"]["max"] <= 1 and helpers["staleness"]["max"] <= 1
    assert [s["step"] for s in read_metrics(folder / "policies" / "helpers")] == list(
        range(1, helpers["steps"] + 1)
    )


def played_tasks(folder):
    ledger = sqlite3.connect(folder / "ledger.sqlite")
    return {
        name
        for (name,) in ledger.execute("SELECT id FROM tasks WHERE state IN ('ready', 'taken', 'trained')")
    }


def test_each_policy_is_trained_on_its_own_turns_only(finished):
    folder, _, _ = finished
    main, helpers = rows_of(folder), rows_of(folder / "policies" / "helpers")
    # A sampled turn that hits its limit of tokens ends its episode, so a truncated row may lack the second turn.
    assert {len(row["turn_start"]) for row in main if row["status"] == "finished"} == {2}
    assert {len(row["turn_start"]) for row in main} <= {1, 2}
    assert {len(row["turn_start"]) for row in helpers} == {1}
    assert {json.loads(row["info"]).get("agent") for row in main} == {None}
    assert {json.loads(row["info"])["agent"] for row in helpers} == {"helper"}
    # Slots that the death of its trainer gave back are played again, with tasks the main policy may not get to train.
    assert {json.loads(row["info"])["of_task"] for row in helpers} <= played_tasks(folder)


def test_both_policies_move_away_from_the_model_they_began_with_and_from_each_other(finished):
    folder, summary, model = finished
    checkpoints = [
        folder / summary["checkpoint"],
        folder / "policies/helpers" / summary["policies"]["helpers"]["checkpoint"],
    ]
    first, main, helpers = (load_file(f"{path}/model.safetensors") for path in (model, *checkpoints))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(main[name], first[name].to(main[name].dtype))
    assert not torch.equal(helpers[name], first[name].to(main[name].dtype))
    assert not torch.equal(main[name], helpers[name])


def test_a_policys_trainer_that_died_went_on_and_nothing_is_left_behind(finished):
    folder, summary, _ = finished
    died = [json.loads(line) for line in (folder / "restarts.jsonl").read_text().splitlines()]
    assert [(event["name"], event["why"]) for event in died] == [
        ("helpers-trainer", "was killed by signal 9")
    ]
    assert summary["restarts"] == {"helpers-trainer": 1}
    assert not processes_of(folder)
    assert not weight_folders(folder.name)


def test_policies_over_one_base_model_are_trained_from_one_engine_which_may_be_lost(sharing):
    folder, summary, _ = sharing
    helpers = summary["policies"]["helpers"]
    assert (summary["steps"], summary["groups"]["trained"]) == (STEPS, STEPS * GROUPS)
    assert helpers["steps"] >= STEPS - 1
    assert summary["staleness"]["max"] <= 1 and helpers["staleness"]["max"] <= 1
    died = [json.loads(line)["name"] for line in (folder / "restarts.jsonl").read_text().splitlines()]
    assert died == ["engine-0"]
    assert sorted(path.name for path in (folder / "logs").glob("*engine*")) == ["engine-0.log"]
    assert not processes_of(folder)
    assert not weight_folders(folder.name)


def test_what_a_shared_engine_sampled_for_a_policy_is_what_its_trainer_computes(sharing):
    folder, _, _ = sharing
    for place in (folder, folder / "policies" / "helpers"):
        fresh = [step for step in read_metrics(place) if step["lag_0/token_fraction"]]
        assert fresh[0]["step"] == 1
        assert max(abs(step["lag_0/mismatch_kl_k1"]) for step in fresh) < 1e-6


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({"lora": {"rank": 2}}, True),
        ({"lora": {"rank": 2}, "engine": {"count": 1}}, False),
        ({"lora": {"rank": 2}, "model": {"path": "another"}}, False),
        ({"lora": {"rank": 0}}, False),
    ],
)
def test_a_policy_has_engines_of_its_own_unless_it_trains_adapters_of_the_same_base_model(changes, shared):
    config = parse_config(recipe(**changes) | {"lora": {"rank": 4}})
    assert config.shares_engines("helpers") == shared
    assert config.co_served_policies == ({"helpers": config.policy("helpers").lora} if shared else {})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"policies": {"a": {"agents": []}}}, "policies.a.agents: list should have at least 1 item"),
        (
            {"policies": {"a": {"agents": ["x"], "trian": {}}}},
            "policies.a.trian: unknown key; did you mean 'train'",
        ),
        (
            {"policies": {"a": {"agents": ["x"], "train": {"num_step": 1}}}},
            "policies.a: 1 problem(s):\n  train.num_step: unknown key; did you mean 'num_steps'",
        ),
        (
            {"policies": {"a": {"agents": ["x"]}, "b": {"agents": ["x"]}}},
            "'x' is already played by policies.a",
        ),
        *(
            (
                {"policies": {name: {"agents": ["x"]}}},
                f"policies.{name}: a policy's name must consist of letters",
            )
            for name in ("a/b", "a=b", "..", "", "a b", "-a")
        ),
        ({"rollout": {"branches": 1}}, "rollout.branches must be left out where there are policies"),
        ({"eval": {"every": 1, "tasks": 1}}, "eval.every must be left out where there are policies"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_by_key(changes, why):
    with pytest.raises(ConfigError) as refused:
        parse_config(recipe() | changes)
    assert why in str(refused.value)


def test_a_policy_has_the_recipes_settings_but_for_its_own(tmp_path):
    config = parse_config(recipe(train={"learning_rate": 5e-5}, algo={"preset": "gspo"}))
    helpers = config.policy("helpers")
    assert (helpers.train.learning_rate, helpers.train.num_steps) == (5e-5, STEPS)
    assert (helpers.algo, config.algo) == ({"preset": "gspo"}, {"preset": "grpo"})
    assert (helpers.policies, helpers.eval.tasks) == ({}, 0)


def test_policies_that_read_other_tokens_are_refused(tiny_model, tmp_path):
    check_same_tokenizer(tiny_model, tiny_model, "helpers")
    shutil.copytree(tiny_model, tmp_path / "other")
    check_same_tokenizer(tiny_model, str(tmp_path / "other"), "helpers")
    (tmp_path / "other" / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"policies\.helpers\.model\.path.*another tokenizer\.json"):
        check_same_tokenizer(tiny_model, str(tmp_path / "other"), "helpers")
