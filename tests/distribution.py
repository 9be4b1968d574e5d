"""How the tests are shared among pytest-xdist's processes (`-n`): in lots that stay together, the longest first.

A file is a lot. So are files that share what is long in the making, and each page of the documentation. What takes
longest starts first: a long lot at the end would keep one process busy while the others have nothing left to do.
"""

from __future__ import annotations

import re
from typing import Any

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "tests/services/engine/test_engine.py": "the session's engine",
    "tests/extensions/vision/test_engine_images.py": "the session's engine",
    "tests/services/engine/test_engine_int8.py": "the session's engine",
    "tests/extensions/sleep/test_switch.py": "the session's engine",
    "tests/extensions/agents/serving/test_gateway_engine.py": "the session's engine",
    "tests/extensions/agents/test_players.py": "the session's engine",
    "tests/services/rollout/test_in_worker.py": "the session's engine",
    "tests/services/rollout/test_rollout_service.py": "the session's engine",
    "tests/train/parts/test_scoring.py": "the session's engine",
    "tests/extensions/old_policy/test_scored_versions.py": "the session's engine",
    **dict.fromkeys(
        (
            "tests/algo/test_aggregate.py",
            "tests/train/test_bfloat16.py",
            "tests/train/test_checkpointer.py",
            "tests/train/test_gradient_agreement.py",
            "tests/train/test_logprob_check.py",
            "tests/extensions/lora/test_adapter.py",
            "tests/extensions/memory_checkpoints/test_memory.py",
            "tests/extensions/league/test_minimax.py",
            "tests/extensions/other_optimizers/test_optimizers.py",
            "tests/extensions/outer/test_exchange.py",
            "tests/extensions/planning/test_predicted_memory.py",
            "tests/train/test_presets.py",
            "tests/train/test_step.py",
            "tests/extensions/tensor_parallel/test_engine_part.py",
            "tests/extensions/vision/test_rows.py",
        ),
        "two ranks",
    ),
}
"""Files that share a lot by its name."""
SECONDS = {
    "tests/test_reliability.py": 280,
    "tests/test_gpu_acceptance_run.py": 230,
    "tests/docs/README.md": 270,
    "tests/extensions/sandbox_attacks/test_attacks.py": 190,
    "two ranks": 200,
    "tests/extensions/lora/test_lora_run.py": 160,
    "tests/test_extras.py": 150,
    "tests/extensions/planning/test_gpu_recipes.py": 120,
    "tests/docs/docs/tutorial/": 150,
    "tests/test_end_to_end.py": 145,
    "tests/test_chaos.py": 130,
    "tests/test_joining.py": 120,
    "tests/envs/test_browser.py": 105,
    "tests/test_curriculum_run.py": 105,
    "tests/extensions/league/test_exploiter_run.py": 45,
    "tests/test_large_models_run.py": 90,
    "tests/test_collective_run.py": 90,
    "tests/launch/test_schedules.py": 90,
    "tests/sandbox/test_sandbox_contract.py": 90,
    "tests/docs/docs/planning.md": 85,
    "tests/test_shared_engine.py": 85,
    "the session's engine": 95,
    "tests/test_killed_machine.py": 70,
    "tests/test_engine_machines_run.py": 60,
    "tests/extensions/metric_sinks/test_processes.py": 70,
    "tests/extensions/planning/test_predicted_memory.py": 70,
    "tests/launch/test_policies.py": 65,
    "tests/launch/test_supervise.py": 65,
    "tests/extensions/machines/test_ray_nodes.py": 65,
    "tests/services/engine/test_policy.py": 55,
    "tests/extensions/machines/test_slurm.py": 55,
    "tests/extensions/lr_zero/test_run.py": 55,
    "tests/envs/test_terminal.py": 55,
    "tests/services/env/test_load_env.py": 50,
    "tests/services/env/test_env_client.py": 50,
    "tests/docs/docs/evaluation.md": 45,
    "tests/docs/docs/images.md": 45,
    "tests/docs/docs/scaling.md": 90,
    "tests/extensions/planning/test_refuse.py": 45,
    "tests/services/buffer/test_load_buffer.py": 45,
    "tests/docs/docs/adapters.md": 45,
    "tests/extensions/planning/test_predict.py": 40,
    "tests/extensions/monitor/test_pages.py": 35,
    "tests/docs/docs/memory.md": 30,
    "tests/docs/recipes/team_policies/README.md": 30,
    "tests/extensions/study/test_runner.py": 30,
    "tests/docs/docs/lora.md": 30,
    "tests/launch/test_check.py": 30,
    "tests/extensions/env_adapters/test_verifiers_v1.py": 30,
    "tests/extensions/env_adapters/test_verifiers_taskset.py": 30,
    "tests/extensions/env_adapters/test_cookbook_env.py": 30,
    "tests/extensions/env_adapters/test_tau2.py": 25,
    "tests/extensions/tinker/test_sdk_kills.py": 600,
    "tests/extensions/tinker/test_sdk.py": 300,
    "tests/extensions/tinker/test_ranks.py": 200,
    "tests/extensions/tinker/test_sdk_ranks.py": 150,
    "tests/extensions/tinker/test_cookbook.py": 120,
    "tests/docs/docs/tinker.md": 60,
    "tests/extensions/benchmarks/test_suite_play.py": 20,
    "tests/docs/docs/environments.md": 20,
    "tests/extensions/http_weights/test_carrier.py": 20,
    "tests/extensions/env_adapters/test_openenv.py": 20,
    "tests/services/engine/test_engine_machines.py": 25,
    "tests/services/engine/test_engine_collective.py": 15,
    "tests/launch/test_periodic_evaluation.py": 15,
    "tests/extensions/lora/test_engine_lora.py": 15,
    "tests/services/engine/test_engine_families.py": 200,
    "tests/services/engine/test_engine_catch_up.py": 15,
    "tests/services/engine/test_engine_end.py": 15,
    "tests/extensions/offload/test_memory.py": 15,
    "tests/envs/test_code.py": 15,
    "tests/envs/test_math_tool.py": 15,
    "tests/envs/test_repair.py": 15,
    "tests/docs/recipes/": 14,
    "tests/docs/docs/": 12,
    "tests/services/": 10,
    "tests/sandbox/": 10,
    "tests/envs/": 5,
}
"""About how long lots take, by the beginning of their names; all others are short."""
TUTORIAL = "docs/tutorial/"
"""Pages whose blocks run in one folder, one after the other."""
PAGE = re.compile(r"tests/docs/test_pages\.py::.*\[([\w./-]+\.md)")


def lot(test: str) -> str:
    """Return the name of a test's lot. `test` is the id that pytest gives it."""
    if page := PAGE.match(test):
        return f"tests/docs/{TUTORIAL if page[1].startswith(TUTORIAL) else page[1]}"
    file = test.partition("::")[0]
    return TOGETHER.get(file, file)


def seconds(name: str) -> float:
    """Return about how long a lot takes."""
    known = max((start for start in SECONDS if name.startswith(start)), key=len, default="")
    return SECONDS.get(known, 0)


class LongestFirst(LoadScopeScheduling):
    """Hands out whole lots in the order of the collection, which `longest_first` has sorted."""

    def _split_scope(self, nodeid: str) -> str:
        return lot(nodeid)


def longest_first(items: list[Any]) -> None:
    """Sort tests by their lots; within one they keep their order."""
    items.sort(key=lambda item: (-seconds(lot(item.nodeid)), lot(item.nodeid)))
