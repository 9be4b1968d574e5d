"""Settings that each turn one feature on, and every problem that the checks find in a recipe with some of them."""

from __future__ import annotations

import functools
import json
from typing import Any

from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.config import Config
from asyncrl.conflicts.protocol import Asked
from asyncrl.conflicts.registry import FEATURES
from asyncrl.extensions.settings import composed

PLAIN: dict[str, Any] = {"model.path": "m", "env.name": "gridworld", "algo": {"preset": "grpo"}}
STALENESS = {"preset": "grpo", "staleness_control": {"enabled": True}}
SETTINGS: dict[str, dict[str, Any]] = {
    "an agent": {"env.name": "agent"},
    "the tiny base model": {"model.path": "sft"},
    "rows to learn from": {"sft.data": "rows.jsonl"},
    "synchronous": {"train.schedule": "synchronous", "buffer.max_staleness": 0},
    "periodic": {"train.schedule": "periodic", "buffer.max_staleness": 0},
    "one step off": {"train.schedule": "one_step_off"},
    "asynchronous": {"train.schedule": "asynchronous"},
    "no staleness": {"buffer.max_staleness": 0},
    "a token budget": {"buffer.token_budget": 10_000},
    "no recycling": {"buffer.recycle": False},
    "dropping groups without signal": {"buffer.drop_no_signal": True},
    "a buffer on a node": {"buffer.machine": "node"},
    "a replica": {"buffer.replica": "http://r"},
    "four ranks": {"train.ranks": 4},
    "a trainer on two nodes": {"train.nodes": 2},
    "at least two nodes": {"train.min_nodes": 2},
    "engines on two machines": {"engine.nodes": 2},
    "engines of two ranks": {"engine.tensor_parallel": 2},
    "two stages": {"engine.pipeline_parallel": 2},
    "ZeRO-3": {"train.zero_stage": 3},
    "an offloaded optimizer": {"train.offload": "optimizer"},
    "a folder to offload to": {"train.offload_folder": "/o"},
    "offloaded activations": {"train.offload_activations": True},
    "kept activations": {"train.gradient_checkpointing": True},
    "AdamW of 8 bits": {"train.optimizer": "adamw_8bit"},
    "Muon": {"train.optimizer": "muon"},
    "two mini-batches": {"train.num_minibatches": 2},
    "a judge": {"judge.url": "http://j"},
    "a judge of groups": {"judge.url": "http://j", "judge.relative": "ranking"},
    "a vote": {"majority.mode": "replace"},
    "a price of length": {"length.mode": "adaptive"},
    "a length asked for": {"length.mode": "exact", "length.least_target": 9, "length.most_target": 99},
    "ended thinking": {"rollout.most_thinking": 3},
    "adapters": {"lora.rank": 4},
    "weights by collectives": {"engine.weight_transfer": "collective"},
    "weights over HTTP": {"engine.weight_transfer": "http"},
    "deltas": {"engine.weight_delta": True},
    "sleep": {"placement.sleep": True},
    "a kept cache": {"engine.keep_kv": True},
    "a cache in host memory": {"engine.kv_offload_gib": 1.0},
    "speculation": {"engine.speculative.method": "ngram"},
    "a draft model": {"engine.speculative.method": "eagle", "engine.speculative.model": "d"},
    "a low temperature": {"rollout.temperature": 0.5},
    "a low temperature of evaluations": {"eval.temperature": 0.5},
    "rounded engines": {"engine.quantization": "int8"},
    "batch invariance": {"engine.batch_invariant": True},
    "router replay": {"train.router_replay": True},
    "tensor parallelism": {"train.tensor_parallel": 2},
    "sequence parallelism": {"train.sequence_parallel": 2},
    "an old-policy process": {"train.old_policy": "process"},
    "a reward model": {"judge.kind": "folder", "judge.model": "rm"},
    "a policy that judges": {"judge.kind": "policy"},
    "interrupts": {"train.old_policy": "interrupt"},
    "commitments": {"train.commitments": True},
    "no log-probability check": {"train.max_logp_error": 0.0},
    "replay": {"train.replay_groups": 2},
    "completion": {"train.complete_groups": True},
    "completion from a file": {"train.complete_from": "runs/strong"},
    "an outer optimizer": {"outer.url": "http://o"},
    "a swarm": {"swarm.url": "http://s"},
    "scaled engines": {"scale.engine": [1, 2]},
    "scaled workers": {"scale.rollout": [2, 4]},
    "opponents": {"opponents.choose": "uniform"},
    "a curriculum": {"curriculum.name": "vade"},
    "seeds": {"curriculum.name": "xrpo", "curriculum.settings": {"seeds": 2}},
    "turn slack": {"curriculum.turn_slack": 1.5},
    "too little turn slack": {"curriculum.turn_slack": 0.5},
    "evaluations": {"eval.every": 2},
    "no evaluation tasks": {"eval.tasks": 0},
    "a task file": {"env.task_file": "/t"},
    "rows as tasks": {"data.train": "rows.jsonl"},
    "few tasks": {"env.num_tasks": 2},
    "groups of one": {"rollout.group_size": 1},
    "branches": {"rollout.branches": 2},
    "hints": {"rollout.hinted": 2},
    "a policy": {"policies": {"other": {"agents": ["second"]}}},
    "an exploiter": {"policies": {"rival": {"exploits": 4}}},
    "a critic's exploiter": {"policies": {"rival": {"exploits": 4, "minimax": True}}},
    "a policy of neither kind": {"policies": {"a b": {"minimax": True}}},
    "no checkpoints": {"train.checkpoint_every": 0},
    "a teacher": {"teacher.path": "t"},
    "a served teacher": {"teacher.path": "http://t"},
    "a self-teacher": {"teacher.path": "self"},
    "a served reference": {"reference.path": "http://r"},
    "refreshed references": {"reference.refresh_every": 5},
    "distillation": {"algo": {"preset": "opd"}},
    "whole distributions": {"algo": {"preset": "opd_full"}},
    "PPO": {"algo": {"preset": "ppo"}},
    "a shared critic's steps": {"algo": {"preset": "ppo", "value": {"trunk": "shared", "steps": 2}}},
    "a greedy baseline": {"algo": {"preset": "remax"}},
    "prompt baselines": {"algo": {"preset": "grpo", "advantage": {"name": "spo"}}},
    "snapshots": {"algo": {"preset": "decoupled_ppo", "proximal": {"name": "snapshot"}}},
    "gradient norms": {"algo": {"preset": "vcpo", "advantage": {"score": "gradient"}}},
    "a tree": {"algo": {"preset": "grpo", "advantage": {"name": "tree"}}},
    "controlled staleness": {"algo": STALENESS},
    "a high least staleness": {"algo": {"preset": "grpo", "staleness_control": {"enabled": True, "minimum": 3}}},
    "crossed bounds of staleness": {
        "algo": {"preset": "grpo", "staleness_control": {"enabled": True, "low_ess": 0.8}}
    },
    "always a signal": {"algo": {"preset": "sat"}},
}  # fmt: skip
"""By what they turn on."""


class Unchecked(Config):
    """A configuration that may have conflicts."""

    def _fits(self) -> Unchecked:
        return self


def with_features(*names: str) -> Unchecked:
    """Return a plain recipe with features, the later ones over the earlier."""
    data: dict[str, Any] = {}
    for key, value in (PLAIN | {k: v for name in names for k, v in SETTINGS[name].items()}).items():
        *parents, last = key.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return composed(Unchecked).model_validate(data)


@functools.cache
def _asked(algo: str) -> Asked:
    settings = resolve_settings(json.loads(algo))
    return Asked(settings, needed(settings))


def problems(recipe: Unchecked) -> list[str]:
    """Return all that the checks find, in the order in which they would show it."""
    asked = _asked(json.dumps(recipe.algo))
    found = [text for one in FEATURES for text in one.sections(recipe)]
    if not found and recipe.policies:
        found += [text for one in FEATURES for text in one.policies(recipe)]
    found += [text for one in FEATURES for text in one.objective(recipe, asked)]
    if not found and recipe.policies:
        found += [text for one in FEATURES for text in one.policy_objectives(recipe)]
    return found
