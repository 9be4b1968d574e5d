"""Which tests `make test` leaves to `make test-all`: extensions, clusters, two ranks, reliability and pages at length.

`make test` has the core, with each promise of the README once, end to end. A test at length joins it where the code
that it stands on, or the test itself, has changed: `make test CHANGED=origin/main` compares with that commit.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from tests.distribution import lot

ROOT = Path(__file__).parent.parent
PARTS_OF_TRAINERS = tuple(
    f"asyncrl/extensions/{name}/"
    for name in (
        *("checkpoint_store", "critic", "distillation", "lora", "memory_checkpoints", "old_policy"),
        *("other_optimizers", "sequence_parallel"),
    )
)
TRAINER = ("asyncrl/train/", "asyncrl/algo/", "services/trainer/", *PARTS_OF_TRAINERS)
ROLLOUT = ("asyncrl/rollout/", "services/rollout/", "asyncrl/chat/")
ENGINE = ("asyncrl/weights/", "services/engine/")
LAUNCH = ("asyncrl/launch/", "asyncrl/run/")
WAYS_OF_WEIGHTS = tuple(
    f"asyncrl/extensions/{name}/" for name in ("collective_weights", "http_weights", "weight_deltas")
)
BUFFER = ("asyncrl/buffer/", "services/buffer/")
SANDBOX = ("asyncrl/sandbox/",)
IMAGES = (*SANDBOX, "asyncrl/extensions/sandbox_images/")
AGENTS = ("asyncrl/extensions/agents/",)
PLAN = (
    "asyncrl/extensions/planning/",
    "asyncrl/extensions/simulation/",
    "asyncrl/launch/checks/start_check.py",
)
MONITOR = ("asyncrl/extensions/monitor/", "asyncrl/run/")
RUNS = (*TRAINER, *ROLLOUT, *ENGINE, *LAUNCH, *BUFFER)

TWO_RANKS = (*TRAINER, "asyncrl/extensions/", "asyncrl/data/", "tests/ranks.py")
"""What the tests stand on that ask for the fixture `two_ranks`."""
AT_LENGTH: dict[str, tuple[str, ...]] = {
    # Pages but the README's: every block, as printed.
    "tests/docs/docs/": ("docs/", "asyncrl/commands/"),
    "tests/docs/recipes/": ("recipes/",),
    "tests/docs/envs/": ("envs/",),
    "tests/docs/test_hub_run.py": ("asyncrl/rows/", "asyncrl/commands/"),
    # Kills, clusters and machines; the core keeps ten kills at random.
    "tests/test_reliability.py": RUNS,
    "tests/test_joining.py": ("services/joining.py", *LAUNCH),
    "tests/test_joined_gateway_run.py": ("services/joining.py", *AGENTS, *RUNS),
    "tests/test_killed_machine.py": RUNS,
    "tests/test_engine_machines_run.py": (*ENGINE, *WAYS_OF_WEIGHTS, *LAUNCH),
    "tests/test_scaling_script.py": ("scripts/",),
    "tests/test_gpu_acceptance_run.py": (
        "scripts/gpu_acceptance.py",
        "scripts/acceptance/",
        "scripts/testing/",
    ),
    "tests/extensions/autoscale/": ("asyncrl/extensions/autoscale/", *LAUNCH),
    "tests/extensions/machines/": ("asyncrl/extensions/machines/", *LAUNCH),
    "tests/services/buffer/test_load_buffer.py": BUFFER,
    "tests/services/env/test_load_env.py": ("services/env/", "asyncrl/env/"),
    "tests/extensions/replica/": ("asyncrl/extensions/replica/", *BUFFER),
    # Optional features, in runs of their own.
    "tests/extensions/lora/test_lora_run.py": (*TRAINER, *ENGINE, "asyncrl/extensions/lora/"),
    "tests/test_extras.py": (*TRAINER, *ROLLOUT, "asyncrl/data/"),
    "tests/test_curriculum_run.py": (*BUFFER, "asyncrl/extensions/curriculum/"),
    "tests/extensions/league/test_exploiter_run.py": ("asyncrl/extensions/league/", *TRAINER, *ROLLOUT),
    "tests/test_large_models_run.py": (*TRAINER, *ENGINE),
    "tests/test_collective_run.py": (*TRAINER, *ENGINE, *WAYS_OF_WEIGHTS),
    "tests/test_shared_engine.py": (*ENGINE, *LAUNCH),
    "tests/launch/test_policies.py": RUNS,
    "tests/launch/test_schedules.py": RUNS,
    "tests/extensions/metric_sinks/": ("asyncrl/extensions/metric_sinks/", "asyncrl/run/"),
    "tests/extensions/play_again/test_play_again.py": LAUNCH,
    "tests/services/engine/test_engine_collective.py": (*ENGINE, *WAYS_OF_WEIGHTS),
    "tests/services/engine/test_engine_experts.py": (*ENGINE, *TRAINER),
    "tests/services/engine/test_engine_families.py": (*ENGINE, *TRAINER),
    "tests/services/engine/test_engine_hybrid.py": ENGINE,
    "tests/extensions/vision/test_engine_images.py": (*ENGINE, "asyncrl/extensions/vision/"),
    "tests/services/engine/test_engine_int8.py": ENGINE,
    "tests/extensions/lora/test_engine_lora.py": (*ENGINE, "asyncrl/extensions/lora/"),
    "tests/services/engine/test_engine_machines.py": (*ENGINE, *WAYS_OF_WEIGHTS),
    "tests/extensions/sleep/test_switch.py": ("asyncrl/extensions/sleep/", *ENGINE),
    "tests/extensions/speculation/": ("asyncrl/extensions/speculation/", *ENGINE),
    "tests/extensions/outer/": ("asyncrl/extensions/outer/", *TRAINER),
    "tests/extensions/swarm/": ("asyncrl/extensions/swarm/", *TRAINER),
    "tests/extensions/study/": ("asyncrl/extensions/study/",),
    # Programs of others against a server with its trainer and its engine; the core keeps what they stand on.
    "tests/extensions/tinker/test_sdk.py": ("asyncrl/extensions/tinker/", *ENGINE),
    "tests/extensions/tinker/test_sdk_kills.py": ("asyncrl/extensions/tinker/", *ENGINE),
    "tests/extensions/tinker/test_sdk_ranks.py": ("asyncrl/extensions/tinker/", *ENGINE),
    "tests/extensions/tinker/test_ranks.py": ("asyncrl/extensions/tinker/",),
    "tests/extensions/tinker/test_cookbook.py": ("asyncrl/extensions/tinker/", *ENGINE),
    # Environments that need a program of the system, and libraries of others behind adapters.
    "tests/extensions/env_adapters/": (
        *("asyncrl/env/", "asyncrl/extensions/env_adapters/"),
        "asyncrl/extensions/env_tools/",
    ),
    "tests/envs/test_browser.py": ("envs/browser/",),
    "tests/envs/test_terminal.py": ("envs/terminal/", *IMAGES),
    "tests/envs/test_terminal_images.py": ("envs/terminal/", *IMAGES),
    "tests/envs/test_swe_setup.py": ("envs/swe/", *IMAGES),
    # Agents: the core keeps a worker that plays them on a real engine.
    "tests/extensions/agents/gateway/": (*AGENTS, *ROLLOUT),
    "tests/extensions/agents/harness/": (*AGENTS, *IMAGES),
    "tests/extensions/agents/serving/": (*AGENTS, *ROLLOUT, *BUFFER),
    # The sandbox against every backend; the core keeps the contract of those that are there.
    "tests/extensions/sandbox_attacks/": (
        *SANDBOX,
        "asyncrl/extensions/other_sandboxes/",
        "asyncrl/extensions/sandbox_attacks/",
    ),
    "tests/sandbox/test_sandbox_languages.py": SANDBOX,
    "tests/extensions/remote_sandboxes/": (*SANDBOX, "asyncrl/extensions/remote_sandboxes/"),
    "tests/extensions/push/": ("asyncrl/extensions/push/",),
    "tests/extensions/supervised/": ("asyncrl/extensions/supervised/", *TRAINER),
    "tests/extensions/benchmarks/test_suite_play.py": ("asyncrl/extensions/benchmarks/", *LAUNCH, *ROLLOUT),
    # Programs of others that evaluate, each in an environment that its first test installs.
    "tests/extensions/other_evaluators/": (
        "asyncrl/extensions/other_evaluators/",
        "asyncrl/extensions/benchmarks/",
    ),
    # The monitor's pages in a browser, and what it is asked at random; the core keeps a look at a run by its command.
    "tests/extensions/monitor/test_dashboard.py": (*MONITOR, "services/"),
    "tests/extensions/monitor/test_monitor_fuzz.py": MONITOR,
    "tests/extensions/monitor/test_pages.py": MONITOR,
    # The planner.
    "tests/extensions/planning/": (*PLAN, "recipes/"),
    "tests/extensions/simulation/": PLAN,
}
"""What of the source the tests stand on whose file, or page (`tests.distribution.lot`), begins so."""
SEAMS = (
    "asyncrl/train/loop/callbacks.py",
    "asyncrl/train/features/sampled_check.py",
    "asyncrl/weights/vllm_hooks.py",
    "asyncrl/rollout/group.py",
    "asyncrl/rollout/elsewhere.py",
    "asyncrl/buffer/lease_hooks.py",
    "asyncrl/data/token_extras/",
    "asyncrl/conflicts/protocol.py",
    "asyncrl/extensions/table.py",
    "tests/conftest.py",
    "requirements/",
)
"""What every extension stands on: a change here calls for all tests."""


def at_length(item: Any, changed: Collection[str] = ()) -> bool:
    """Return whether `make test` leaves a test out. changed: files that differ, relative to the repository."""
    sources = stands_on(item.nodeid, getattr(item, "fixturenames", ()))
    if sources is None:
        return False
    called_for = (*sources, *SEAMS, item.nodeid.partition("::")[0])
    return not any(file.startswith(called_for) for file in changed)


def stands_on(test: str, fixtures: Iterable[str]) -> tuple[str, ...] | None:
    """Return what of the source a test at length stands on, None for a test of the core."""
    if "two_ranks" in fixtures:
        return TWO_RANKS
    name = _page_or_file(test)
    starts = [start for start in AT_LENGTH if name.startswith(start)]
    return AT_LENGTH[max(starts, key=len)] if starts else None


def _page_or_file(test: str) -> str:
    """Return a test's file, or the page whose block it runs. What else is asked of pages takes no time."""
    return lot(test) if "::test_every_block_runs_as_printed[" in test else test.partition("::")[0]


def changed_since(commit: str) -> set[str]:
    """Return the files of the working tree that differ from a commit, or are new. Raises `ValueError` for no commit."""
    found: set[str] = set()
    for words in (("diff", "--name-only", commit, "--"), ("ls-files", "--others", "--exclude-standard")):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(f"--changed: git does not know {commit!r}: {done.stderr.strip()}")
        found |= set(done.stdout.split("\n")) - {""}
    return found
