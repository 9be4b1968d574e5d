"""Imports point down only, heavy packages stay where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    {
        "types",
        "errors",
        "endpoint",
        "import_path",
        "jsonfile",
        "parent",
        "disk",
        "doors",
        "together",
        "tokens",
    },
    {"config_sections"},
    {"config", "log"},
    {"algo", "data", "buffer", "env", "weights"},
    {"evaluation", "gateway", "rollout", "train"},
    {"clients"},
    {"services"},
    {"launch"},
    {"commands", "cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
EXCEPTIONS = {
    ("buffer", "data"): "the ledger keeps groups in their wire form",
    ("train", "rollout"): "demonstrations are rendered exactly as rollouts are",
    ("gateway", "rollout"): "agents' conversations are rendered and recorded exactly as own rollouts are",
}
"""Pairs on one layer that may import, and why."""


def modules():
    for folder, prefix in (("asyncrl", ""), ("services", "services/"), ("envs", "envs/")):
        for path in (ROOT / folder).rglob("*.py"):
            relative = prefix + str(path.relative_to(ROOT / folder))
            yield relative.split("/")[0].removesuffix(".py"), path


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def test_imports_point_down_only():
    wrong = []
    for part, path in modules():
        for name in imported(path):
            top, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if top != "asyncrl" or not target or target == part or (part, target) in EXCEPTIONS:
                continue
            if part == "envs":
                allowed = target in {"env", "types", "errors", "envs", "together"}
            elif target == "envs":
                allowed = False
            else:
                allowed = RANK[target] < RANK[part] or {part, target} <= LAYERS[0]
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_services_import_no_other_service_but_the_shared_plumbing():
    roles = {"buffer", "engine", "env", "gateway", "rollout", "trainer"}
    for path in (ROOT / "services").glob("*.py"):
        others = {n.split(".")[2] for n in imported(path) if n.startswith("asyncrl.services.")}
        assert not (others & roles) - {path.stem}, path


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("deepspeed", {"asyncrl/train/engine.py", "asyncrl/train/full_state.py"}),
        ("vllm", {"asyncrl/weights/vllm_*.py"}),
        ("pickle", set()),
    ],
)
def test_heavy_or_dangerous_packages_are_imported_only_where_they_belong(package, allowed):
    found = {
        str(path.relative_to(ROOT))
        for _, path in modules()
        if any(n.split(".")[0] == package for n in imported(path))
    }
    stray = {path for path in found if not any(Path(path).match(pattern) for pattern in allowed)}
    assert not stray


@pytest.mark.parametrize(
    "module",
    [
        "asyncrl.cli",
        "asyncrl.config",
        "asyncrl.launch.train",
        "asyncrl.services.buffer",
        "asyncrl.services.env",
    ],
)
def test_light_processes_never_load_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
