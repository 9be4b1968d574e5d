"""The trainer's process of a plain recipe imports no features that it has not, and its modules only become fewer."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST = 120
"""Beside the `settings.py` of each extension, which import nothing else of ours (`tests/extensions/test_settings.py`).
Lower it when a feature leaves; one that would raise it is imported by its factory.

See `asyncrl/extensions/table.py`."""
OF_EVERY_RUN = (
    "asyncrl.services.trainer.command",
    "asyncrl.services.trainer.service",
    "asyncrl.train.features.poison",
    "asyncrl.train.features.sampled_check",
)
"""The process, and the modules of the callbacks that every run has."""
ABSENT = (
    *(
        f"asyncrl.extensions.{path.name}"
        for path in (ROOT / "asyncrl" / "extensions").iterdir()
        if path.is_dir()
    ),
    "asyncrl.extensions.installed",
    "asyncrl.algo.advantage.",
    "asyncrl.algo.curation",
    "asyncrl.algo.loss",
    "asyncrl.algo.proximal",
    "asyncrl.conflicts",
    "asyncrl.images",
    "asyncrl.rows",
    "asyncrl.services.engine.client",
    "asyncrl.train.models.fused_logprobs",
    "asyncrl.train.loop.left_out",
    "asyncrl.train.parts.reference",
    "asyncrl.train.parts.score",
    "asyncrl.train.loop.schedule",
    "asyncrl.train.step.stream",
)
"""Modules of features that a plain recipe has not."""


def file_of(name):
    path = ROOT.joinpath(*name.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.exists()), None)


def run_at_import(body):
    """Yield the imports that run when a module is imported."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            yield from () if "TYPE_CHECKING" in ast.unparse(node.test) else run_at_import(node.body)
            yield from run_at_import(node.orelse)
        elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
            yield from run_at_import(node.body)


def names_imported(file):
    for node in run_at_import(ast.parse(file.read_text()).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def has_code(file):
    """False for the file of a package that says what is in it, and nothing else."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(file.read_text()).body)


def imported_with(*names):
    """Return the modules of ours, packages included, that are imported with some."""
    found, left = set(), list(names)
    while left:
        name = left.pop()
        file = file_of(name) if name.split(".")[0] == "asyncrl" and name not in found else None
        if file is not None:
            found.add(name)
            left += [name.rpartition(".")[0], *names_imported(file)]
    return found


def test_modules_are_followed_through_packages_but_not_into_functions_or_types(tmp_path, monkeypatch):
    for name, text in {
        "__init__": "",
        "a": "from typing import TYPE_CHECKING\nfrom asyncrl import b\nif TYPE_CHECKING:\n    import asyncrl.c\n",
        "b": "import asyncrl.d.e\ndef f():\n    import asyncrl.c\n",
        "c": "",
        "d/__init__": "",
        "d/e": "",
    }.items():
        file = tmp_path / "asyncrl" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr("tests.test_trainer_modules.ROOT", tmp_path)
    assert imported_with("asyncrl.a") == {"asyncrl", "asyncrl.a", "asyncrl.b", "asyncrl.d", "asyncrl.d.e"}


def test_a_plain_recipes_trainer_imports_no_more_modules_than_it_did():
    found = imported_with(*OF_EVERY_RUN)
    with_code = {name for name in found if has_code(file_of(name))}
    assert len(with_code) <= MOST, f"{len(with_code)} modules"
    stray = sorted(name for name in found if name.startswith(ABSENT))
    assert not stray
