"""Imports point down only, heavy packages stay where they belong."""

import ast
import functools
import re
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
        "file_lock",
        "generation",
        "import_path",
        "installation",
        "jsonfile",
        "process_hooks",
        "process_start",
        "startup",
        "disk",
        "http_checks",
        "together",
        "credentials",
        "cuda_toolkit",
        "gpus",
        "numa",
        "kv_blocks",
        "tls",
        "tracing",
        "clock",
        "machine",
        "agent_time",
        "images",
        "progress",
        "scratch",
        "signals",
        "cache",
        "patience",
        "tensorfile",
        "textfile",
        "liveness",
        "http_limits",
        "console",
        "http_clients",
        "outage_log",
        "helper_process",
    },
    {"config_sections"},
    {"config_problems"},
    {"extensions"},  # What `asyncrl/extensions/` has beside its folders.
    {"algo", "model_kinds"},
    {"conflicts", "rows"},
    {"config_checks"},
    {"config"},
    {"data", "hosts", "run", "sandbox", "weights"},
    {"rewards"},
    {"buffer", "env"},
    {"chat", "evaluation"},
    {"rollout", "train"},
    {"services"},
    {"tasks"},
    {"launch"},
    {"extensions/"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
ENVS_USE = {
    "env", "sandbox", "types", "errors", "envs", "together", "images", "textfile", "rewards", "rows", "helper_process",
    "agent_time", "scratch",
}  # fmt: skip
"""What an environment may import."""
ROOMS = {
    "train": [
        {"arguments", "models"},
        {"engine"},
        {"checkpoint"},
        {"step"},
        {"parts"},
        {"loop"},
        {"features"},
        {"tiny_model"},
    ],
    "launch": [
        {"processes"},
        {"machines", "models", "reports"},
        {"checks", "roles"},
        {"evaluation"},
        {"cluster", "policies", "run_monitors", "summary"},
        {"train"},
    ],
}
"""The folders of a part, and its modules beside them, from the bottom up."""
EXTENSIONS = ROOT / "asyncrl" / "extensions"
STANDS_ON = {
    "extensions/league": {"critic"},
    "extensions/planning": {"critic", "other_optimizers"},
    "extensions/self_teacher": {"distillation"},
    "extensions/simulation": {"distillation", "planning"},
    "extensions/sleep": {"offload"},
    "extensions/supervised": {"lora", "packaged_models", "vision"},
    "extensions/study": {"benchmarks", "curriculum"},
    "extensions/other_evaluators": {"benchmarks"},
    "extensions/play_again": {"collapse_guard"},
    "extensions/curriculum": {"replay"},
    "extensions/verifier": {"judge"},
    "extensions/agents": {"env_tools", "sandbox_images"},
    "extensions/benchmarks": {"answer_rewards", "program_rewards"},
    "extensions/tinker": {"lora"},
    "extensions/old_policy": {"lora"},
}
"""Which parts import an extension: no others do, since a seam loads it where a run asks for it."""
ENVS_STAND_ON = {
    "benchmarks": {"answer_rewards", "instruction_rewards", "program_rewards"},
    "calculator": {"answer_rewards"},
    "code": {"program_rewards"},
    "math_tool": {"answer_rewards"},
    "swe": {"sandbox_images"},
    "terminal": {"sandbox_images"},
}
"""Which environments do."""
SHARED = {"http", "command", "joining"}
"""What all roles share below `services/`."""
ROLE_LAYERS = [{"messages"}, {"client"}, {"service"}, {"command"}]
"""Of one role's folder, from the bottom up: what goes over the wire, who calls it, the process, its command."""
ACROSS_ROLES = {"messages", "client"}
"""Kinds of modules of a role that other roles may import."""
KINDS = {
    "buffer": dict.fromkeys(("access", "members", "hook_routes"), "service"),
    "engine": {
        **dict.fromkeys(
            (
                "router",
                "placement",
                "health",
                "concurrency",
                "retrying",
                "additions",
                "machines",
                "trouble",
                "control",
                "urls",
            ),
            "client",
        ),
        "policy": "service",
        "policy_command": "command",
    },
    "env": {
        **dict.fromkeys(("connection", "lease"), "client"),
        **dict.fromkeys(("batching", "status", "workers"), "service"),
    },
    "trainer": dict.fromkeys(
        (
            "heartbeat",
            "publisher",
            "recorder",
            "transports",
        ),
        "service",
    ),
}
"""What kind of module those are that are not called by their kind."""
IN_EXTENSIONS = {module for layer in ROLE_LAYERS for module in layer}
"""What of an extension with a process of its own is looked at likewise."""


def modules():
    for folder, prefix in (("asyncrl", ""), ("services", "services/"), ("envs", "envs/")):
        for path in (ROOT / folder).rglob("*.py"):
            relative = prefix + str(path.relative_to(ROOT / folder))
            yield part_of(relative.removesuffix(".py").split("/")), path


def part_of(names):
    """Return the part of a module below `asyncrl`; the folder of an extension is one."""
    in_folder = names[0] == "extensions" and len(names) > 1 and (EXTENSIONS / names[1]).is_dir()
    return f"extensions/{names[1]}" if in_folder else names[0]


def rank(part):
    return RANK["extensions/" if part.startswith("extensions/") else part]


@functools.cache
def imported(path):
    """Return the modules that a file imports; of `from package import module` the module."""
    return tuple(imports_of(path))


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            package = ROOT.joinpath(*node.module.split("."))
            inner = [
                a.name
                for a in node.names
                if (package / a.name).exists() or (package / f"{a.name}.py").exists()
            ]
            yield from (f"{node.module}.{name}" for name in inner)
            if len(inner) < len(node.names):
                yield node.module


def test_imports_point_down_only():
    wrong = []
    for part, path in modules():
        for name in imported(path):
            top, *rest = name.split(".")
            target = part_of(rest) if rest else ""
            if top != "asyncrl" or not target or target == part:
                continue
            if part == "envs":
                allowed = target in ENVS_USE
            elif target == "envs":
                allowed = False
            else:
                allowed = rank(target) < rank(part) or {part, target} <= LAYERS[0]
            if target.startswith("extensions/"):
                extension = target.removeprefix("extensions/")
                own = path.relative_to(ROOT).parts[1] if part == "envs" else ""
                allowed = extension in (ENVS_STAND_ON.get(own, ()) if own else STANDS_ON.get(part, ()))
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_what_an_extension_has_is_named_in_its_own_file_alone():
    named = re.compile(r"""["']asyncrl\.extensions\.\w+\.""")
    outside = [path for part, path in modules() if not part.startswith("extensions")]
    assert [str(path) for path in outside if named.search(path.read_text())] == []


@pytest.mark.parametrize("part", ROOMS)
def test_within_a_part_each_room_imports_what_is_below_it(part):
    rank = {name: rank for rank, names in enumerate(ROOMS[part]) for name in names}
    wrong = []
    for path in (ROOT / "asyncrl" / part).rglob("*.py"):
        room = path.relative_to(ROOT / "asyncrl" / part).parts[0].removesuffix(".py")
        for name in imported(path) if room != "__init__" else ():
            target = name.removeprefix(f"asyncrl.{part}.").split(".")[0]
            if name.startswith(f"asyncrl.{part}.") and target != room and not rank[target] < rank[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def kind(role, module):
    found = KINDS.get(role, {}).get(module, module)
    return next(rank for rank, names in enumerate(ROLE_LAYERS) if found in names), found


def test_within_a_role_messages_are_below_clients_and_these_below_the_service():
    wrong = []
    for path in (ROOT / "services").glob("*/**/*.py"):
        role, module = path.relative_to(ROOT / "services").with_suffix("").parts[:2]
        if role in SHARED or module == "__init__":
            continue
        rank, _ = kind(role, module)
        for name in imported(path):
            parts = name.split(".")
            if parts[:2] != ["asyncrl", "services"] or parts[2] in SHARED or len(parts) < 4:
                continue
            other, found = kind(parts[2], parts[3])
            allowed = other <= rank if parts[2] == role else found in ACROSS_ROLES
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_within_an_extension_with_a_process_they_are_likewise():
    wrong, looked_at = [], set()
    for service in EXTENSIONS.glob("**/service.py"):
        package = f"asyncrl.{'.'.join(service.relative_to(ROOT / 'asyncrl').parts[:-1])}."
        for module in IN_EXTENSIONS:
            path = service.with_name(f"{module}.py")
            for name in imported(path) if path.exists() else ():
                looked_at.add(service.relative_to(EXTENSIONS).parts[0])
                other = name.removeprefix(package) if name.startswith(package) else ""
                if other in IN_EXTENSIONS and kind("", other)[0] > kind("", module)[0]:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)
    assert {"agents", "machines", "old_policy", "openenv", "outer", "replica", "swarm"} <= looked_at


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        (
            "deepspeed",
            {
                f"asyncrl/train/engine/{name}.py"
                for name in (
                    "accumulated",
                    "deepspeed_engine",
                    "optimizers",
                    "pieces",
                )
            }
            | {
                f"asyncrl/extensions/{path}.py"
                for path in ("offload/memory", "sequence_parallel/engine_part")
            },
        ),
        (
            "vllm",
            {"asyncrl/weights/vllm_*.py", "asyncrl/extensions/*/vllm_*.py"},
        ),
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


def test_readers_of_a_run_import_no_torch_at_any_time():
    stray = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "asyncrl" / "run").rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] in ("torch", "transformers", "safetensors")
    ]
    assert not stray


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "asyncrl.cli",
        "asyncrl.config",
        "asyncrl.launch.train",
        "asyncrl.extensions.simulation.hardware",
        "asyncrl.services.buffer.service",
        "asyncrl.services.engine.service",
        "asyncrl.services.env.service",
        "asyncrl.extensions.outer.service",
        "asyncrl.extensions.swarm.service",
    ],
)
def test_light_processes_never_load_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
