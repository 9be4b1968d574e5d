"""Every extension's file can be read, its paths lead somewhere, and a plain run asks for none of them."""

import ast
import contextlib
import tomllib
from types import SimpleNamespace

import pytest

from asyncrl.algo.objective import build_objective
from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.buffer.hooks.configured import LeaseContext
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions import table
from asyncrl.extensions.table import FILE, FOLDER, SEAMS, Row, merged, rows, value_at
from asyncrl.services.engine.additions import additions

ROOT = FOLDER.parent.parent
NAMES = sorted(file.parent.name for file in FOLDER.glob(f"*/{FILE}"))
ROWS = [(seam, row) for seam in sorted(SEAMS) for row in rows(seam)]
SLEEP = {"placement": {"sleep": True}, "train": {"schedule": "synchronous"}, "buffer": {"max_staleness": 0}}
PLAIN = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, "algo": {"preset": "grpo"}})


OF_THE_RECIPE = (
    "task_plans", "task_shares", "checks", "model_checks", "forward_changes", "engine_additions", "episode_ends",
    "evaluation_generators", "training_generators",
    "group_rewards",     "run_monitors", "weight_forms", "buffer_places", "start_models",
)  # fmt: skip
"""Seams that ask with the recipe itself."""


def environment_of(config):
    """Return the variables that extensions add to an engine's environment; none where this machine's cannot have it."""
    with contextlib.suppress(ConfigError):
        return {name: value for one in additions(config, True) for name, value in one.variables.items()}
    return {}


def asked_with(config):
    """Return what each seam asks with."""
    settings = resolve_settings(config.algo)
    run = SimpleNamespace(
        config=config, objective=build_objective(config.algo), arguments=SimpleNamespace(main_buffer="")
    )
    return {
        "trainer_callbacks": run,
        "sampled_checks": run,
        "checkpoint_copies": run,
        "step_parts": run.objective,
        "trunk_heads": run.objective,
        "trackers": run.objective,
        "group_checks": {"needs": run.objective.needs},
        **dict.fromkeys(("engine_processes", "weight_conversions"), environment_of(config)),
        "engine_parts": config.train,
        "strategies": SimpleNamespace(config=config, needs=needed(settings), policies=()),
        "lease_hooks": LeaseContext(config),
        **dict.fromkeys(OF_THE_RECIPE, config),
        "ledger_hooks": LedgerSettings.of(config, 0),
    }


def test_every_folder_is_an_extension_with_a_title_and_a_page():
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} - {"__pycache__"} == set(NAMES)
    for name in NAMES:
        found = tomllib.loads((FOLDER / name / FILE).read_text())
        assert found["title"] and (ROOT / found["page"]).is_file()


@pytest.mark.parametrize(
    ("seam", "row"), ROWS, ids=[f"{row.extension}-{seam}-{row.path.rpartition('.')[2]}" for seam, row in ROWS]
)
def test_every_import_path_leads_to_a_name_of_the_extensions_own_folder(seam, row):
    for path in filter(None, (row.path, row.prepare, row.tasks, row.join)):
        module, _, name = path.partition(":")
        assert module.startswith(f"asyncrl.extensions.{row.extension}.")
        body = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()).body
        given = {getattr(node, "name", "") for node in body}
        targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
        targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
        given |= {target.id for target in targets if isinstance(target, ast.Name)}
        assert name in given


@pytest.mark.parametrize("seam", asked_with(PLAIN))
def test_a_plain_run_asks_for_no_extension(seam):
    assert [row.extension for row in rows(seam) if row.wanted(asked_with(PLAIN)[seam])] == []


@pytest.mark.parametrize(
    ("settings", "seam", "extension"),
    [
        ({"outer": {"url": "http://o"}}, "trainer_callbacks", "outer"),
        ({"swarm": {"url": "http://s"}}, "trainer_callbacks", "swarm"),
        (SLEEP, "trainer_callbacks", "sleep"),
        (SLEEP, "engine_additions", "sleep"),
        ({"train": {"old_policy": "interrupt"}}, "trainer_callbacks", "old_policy"),
        ({"train": {"collapse_guard": True}}, "trainer_callbacks", "collapse_guard"),
        ({"train": {"replay_groups": 1}}, "trainer_callbacks", "replay"),
        ({"opponents": {"choose": "uniform"}, "lora": {"rank": 4}}, "trainer_callbacks", "league"),
        ({"opponents": {"choose": "uniform"}, "lora": {"rank": 4}}, "strategies", "league"),
        ({"opponents": {"choose": "uniform"}, "lora": {"rank": 4}}, "lease_hooks", "league"),
        ({"algo": {"advantage": {"name": "remax"}}}, "strategies", "greedy"),
        ({"algo": {"preset": "spo"}}, "trackers", "published"),
        ({"rollout": {"hinted": 1}}, "strategies", "hints"),
        ({"rollout": {"branches": 2}}, "strategies", "branches"),
        ({"curriculum": {"name": "xrpo"}}, "strategies", "curriculum"),
        ({"curriculum": {"name": "uniform"}}, "lease_hooks", "curriculum"),
        ({"curriculum": {"name": "uniform"}}, "task_plans", "curriculum"),
        ({"curriculum": {"name": "uniform"}}, "checks", "curriculum"),
        ({"outer": {"url": "http://o", "members": 2}}, "task_shares", "outer"),
        ({"lora": {"rank": 4}}, "engine_additions", "lora"),
        ({"lora": {"rank": 4}}, "engine_processes", "lora"),
        ({"lora": {"rank": 4}}, "forward_changes", "lora"),
        ({"judge": {"url": "http://j"}}, "episode_ends", "judge"),
        ({"judge": {"kind": "folder", "model": "rm"}}, "episode_ends", "judge"),
        ({"judge": {"kind": "folder", "model": "rm"}}, "checks", "judge"),
        ({"judge": {"kind": "policy"}}, "episode_ends", "judge"),
        ({"judge": {"url": "http://j", "max_requests": 9}}, "lease_hooks", "judge"),
        ({"judge": {"url": "http://j", "relative": "ranking"}}, "group_rewards", "judge"),
        ({"majority": {"mode": "add"}}, "group_rewards", "majority"),
        ({"eval": {"most_thinking": 9}}, "evaluation_generators", "thinking"),
        ({"rollout": {"most_thinking": 9}}, "training_generators", "thinking"),
        ({"length": {"mode": "adaptive"}}, "strategies", "length"),
        ({"scale": {"engine": [1, 2]}}, "run_monitors", "autoscale"),
        ({"run": {"sinks": ["wandb"]}}, "run_monitors", "metric_sinks"),
        ({"train": {"collapse_guard": True}}, "run_monitors", "collapse_guard"),
        ({"engine": {"speculative": {"method": "ngram"}}}, "engine_additions", "speculation"),
        ({"train": {"commitments": True}}, "engine_additions", "commitments"),
        ({"train": {"commitments": True}}, "engine_processes", "commitments"),
        ({"train": {"commitments": True}}, "sampled_checks", "commitments"),
        ({"train": {"old_policy": "interrupt"}}, "engine_additions", "old_policy"),
        ({"train": {"router_replay": True}}, "engine_additions", "router_replay"),
        ({"engine": {"quantization": "int8"}}, "engine_additions", "quantization"),
        ({"engine": {"kv_offload_gib": 1.0}}, "engine_additions", "kv_offload"),
        ({"engine": {"weight_transfer": "nixl"}}, "checks", "nixl"),
        ({"buffer": {"machine": "node"}}, "buffer_places", "replica"),
        ({"sft": {"data": "rows.jsonl"}}, "start_models", "supervised"),
        ({"sft": {"data": "rows.jsonl"}}, "checks", "supervised"),
        ({"engine": {"weight_delta": True}}, "weight_forms", "weight_deltas"),
        ({"engine": {"batch_invariant": True}}, "engine_additions", "batch_invariance"),
        ({"engine": {"quantization": "int8"}}, "engine_processes", "quantization"),
        ({"engine": {"quantization": "int8"}}, "weight_conversions", "quantization"),
        ({"engine": {"quantization": "int8"}}, "forward_changes", "quantization"),
        ({"train": {"router_replay": True}}, "engine_processes", "router_replay"),
        ({"train": {"router_replay": True}}, "forward_changes", "router_replay"),
        ({"train": {"router_replay": True}}, "model_checks", "router_replay"),
        ({"train": {"old_policy": "interrupt"}}, "engine_processes", "old_policy"),
        ({"train": {"tensor_parallel": 2, "ranks": 2}}, "engine_parts", "tensor_parallel"),
        ({"train": {"sequence_parallel": 2, "ranks": 2}}, "engine_parts", "sequence_parallel"),
        ({"train": {"offload": "optimizer", "zero_stage": 3}}, "engine_parts", "offload"),
        ({"buffer": {"recycle": False}}, "ledger_hooks", "restarts"),
        ({"train": {"memory_checkpoint_every": 1}}, "checkpoint_copies", "memory_checkpoints"),
        ({"train": {"checkpoint_store": "file:///mnt/run"}}, "checkpoint_copies", "checkpoint_store"),
    ],
)
def test_a_run_that_configures_an_extension_has_it(settings, seam, extension):
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **settings})
    assert [row.extension for row in rows(seam) if row.wanted(asked_with(config)[seam])] == [extension]


def test_a_guard_watches_no_run_with_opponents():
    both = {
        "opponents": {"choose": "uniform"},
        "lora": {"rank": 4},
        "train": {"collapse_guard": True},
    }
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **both})
    run = asked_with(config)["trainer_callbacks"]
    assert [row.extension for row in rows("trainer_callbacks") if row.wanted(run)] == ["league"]


def test_rows_are_called_by_their_place():
    own = (Row(path="m:first", place=-1), Row(path="m:last", place=1000))
    found = merged("trainer_callbacks", own)
    assert (found[0], found[-1]) == own
    assert [row.place for row in found] == sorted(row.place for row in found)


@pytest.mark.parametrize(
    ("key", "value"), [("a.b", 1), ("a.c", None), ("names.x", True), ("names.y", False), ("object.path", "p")]
)
def test_a_key_leads_through_mappings_sets_and_attributes(key, value):
    given = SimpleNamespace(a={"b": 1}, names=frozenset({"x"}), object=SimpleNamespace(path="p"))
    assert value_at(given, key) == value


def test_a_key_that_is_not_there_is_a_crash():
    with pytest.raises(AttributeError):
        Row(path="m:f", asked=("config.nothing",)).wanted(SimpleNamespace(config=PLAIN))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[trainer_callback]]\npath = "m:f"\n', "unknown key 'trainer_callback'"),
        ('[[conflicts]]\npath = "m:f"\nplaces = 3\n', "conflicts has an unknown key 'places'"),
    ],
)
def test_a_file_with_an_unknown_seam_or_key_is_refused_by_it(tmp_path, monkeypatch, text, message):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / FILE).write_text(f'title = "t"\n{text}')
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    table.rows.cache_clear()
    try:
        with pytest.raises(ConfigError, match=message):
            table.rows("conflicts")
    finally:
        table.rows.cache_clear()
