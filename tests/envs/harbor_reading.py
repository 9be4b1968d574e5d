"""Reads task folders with harbor's own package, whose interpreter runs this file, and prints what it makes of each.

    python harbor_reading.py FOLDER...

A folder that harbor refuses is null; for another: whether the tests have an environment of their own, and then whether
its image holds them, its variables, memory, network, and the artifacts that come there.
"""

import json
import sys
from pathlib import Path

from harbor.models.task.artifacts import with_convention_entry
from harbor.models.task.config import TaskConfig
from harbor.models.task.paths import TaskPaths
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition


def reading(folder):
    try:
        config = TaskConfig.model_validate_toml((folder / "task.toml").read_text())
    except ValueError:
        return None
    definition = resolve_verifier_environment_definition(config, TaskPaths(folder))
    if definition is None:
        return {"separate": False}
    phase = config.verifier.explicit_phase_policy() or definition.config.resolve_baseline()
    entries = with_convention_entry(config.artifacts, convention_source="/logs/artifacts")
    return {
        "separate": True,
        "bundled": definition.bundled_tests,
        "env": definition.config.env,
        "memory_mb": definition.config.memory_mb or 0,
        "network": [phase.network_mode.value, phase.allowed_hosts],
        "artifacts": [[entry.source, entry.exclude] for entry in entries],
        "collect": [[hook.command, hook.timeout_sec] for hook in config.verifier.collect],
    }


if __name__ == "__main__":
    print(json.dumps([reading(Path(folder)) for folder in sys.argv[1:]]))
