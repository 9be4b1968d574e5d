"""Import paths: how a configuration names an environment, agent, loss or reward of the user's own.

    package.module:name       found in the current folder, the run's `run.python_path` and the installed packages
    path/to/file.py:name      a file, which may import others of its own folder

These folders are searched after the installed packages, so that a `token.py` or `calendar.py` there is not imported by
a library that means another. What a configuration names is looked for in them first.

A file is imported once per process, however it is named; what it declares can be read without importing it. Errors are
`ConfigError`s that say what was searched for and where.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
import traceback
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncrl.errors import ConfigError

Found = ast.FunctionDef | str | None
"""A function, the import path that a name is imported from, or None for what is bound in another way."""
FORMS = "my_pkg.my_module:name or path/to/file.py:name"
_FILE = re.compile(r"(?P<file>[^\n]*[^\n/]\.py):(?P<name>[^\s:/]+)")
_lock = threading.RLock()
_own: list[str] = []
"""The folders of `search_in`."""


def load_object(setting: str, path: Any) -> Any:
    """Return the object that an import path names. Raises `ConfigError` naming the setting."""
    module, separator, name = str(path).rpartition(":")
    if not separator or not module or not name:
        raise ConfigError(f"{setting}: must be an import path such as {FORMS}, got {path!r}")
    loaded = load_module(setting, module, path)
    try:
        return getattr(loaded, name)
    except AttributeError:
        close = difflib.get_close_matches(name, vars(loaded), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        where = getattr(loaded, "__file__", None) or module
        raise ConfigError(
            f"{setting}: {str(path)!r} cannot be imported: {where} has no {name!r}{hint}"
        ) from None


def load_module(setting: str, module: str, path: Any = None) -> ModuleType:
    """Import the module before the colon of an import path. Raises `ConfigError` naming the setting.

    path: what to call it in the message, such as the whole import path.
    """
    failed = f"{setting}: {str(path or module)!r} cannot be imported"
    try:
        if module.endswith(".py"):
            return _load_file(_existing(Path(module), failed))
        if (file := _own_file(module)) is not None and _is_elsewhere(module):
            # Under its own name it would be what libraries get that import the other one.
            return _load_file(file)
        return importlib.import_module(module)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{failed}: {_not_found(error.name)}") from error
        raise ConfigError(f"{failed}: {_described(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{failed}: {_described(error)}") from error


def source_file(setting: str, module: str) -> Path:
    """Return the source of a module or file without importing it. Raises `ConfigError` naming the setting."""
    failed = f"{setting}: {module!r} cannot be imported"
    if module.endswith(".py"):
        return _existing(Path(module), failed)
    if (file := _own_file(module)) is not None:
        return file
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{failed}: {_not_found(error.name or module)}") from error
    except (Exception, SystemExit) as error:
        # Finding a module imports its parent packages.
        raise ConfigError(f"{failed}: {_described(error)}") from error
    if spec is None:
        raise ConfigError(f"{failed}: {_not_found(module)}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise ConfigError(f"{failed}: it has no Python source")
    return Path(spec.origin)


@functools.cache
def top_level_names(setting: str, module: str) -> dict[str, Found]:
    """Return what a module binds at its top level, without importing it. Raises `ConfigError` naming the setting."""
    source = source_file(setting, module)
    try:
        # As bytes: Python itself reads a byte order mark, and the encoding that a first line may name.
        tree = ast.parse(source.read_bytes(), str(source))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{setting}: {source} cannot be read: {error}") from error
    package = module if source.name == "__init__.py" else module.rpartition(".")[0]
    found: dict[str, Found] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            above = _imported_module(node, "" if module.endswith(".py") else package)
            for alias in node.names:
                found[alias.asname or alias.name] = f"{above}:{alias.name}" if above else None
        elif isinstance(node, ast.ClassDef):
            found[node.name] = None
        elif isinstance(node, ast.Assign):
            found |= {target.id: None for target in node.targets if isinstance(target, ast.Name)}
    return found


def _imported_module(node: ast.ImportFrom, package: str) -> str:
    """Return the whole name of the module that `from ... import` names, "" when it cannot be told."""
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])]) if package else ""


def accepts(annotation: ast.expr | None, value: Any) -> bool:
    """Whether a configured value fits an annotation.

    An annotation this does not understand accepts anything.
    """
    if annotation is None:
        return True
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return accepts(annotation.left, value) or accepts(annotation.right, value)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return value is None
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Literal":
        return value in literal_choices(annotation)
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    kind = getattr(base, "id", "")
    if kind == "float":
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) <= sys.float_info.max
        )
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    expected = {"bool": bool, "str": str, "dict": dict, "list": list, "tuple": (list, tuple)}.get(kind)
    return expected is None or isinstance(value, expected)  # type: ignore[arg-type]


def literal_choices(annotation: ast.Subscript) -> list[Any]:
    """The values inside `Literal[...]`."""
    inner = annotation.slice
    elements = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    return [element.value for element in elements if isinstance(element, ast.Constant)]


def search_in(folders: Iterable[str | Path]) -> None:
    """Search modules in these folders, in this order, after the installed packages."""
    for folder in [str(Path(folder).absolute()) for folder in folders]:
        if folder not in _own:
            _own.append(folder)
        if folder not in (os.path.abspath(entry) for entry in sys.path):
            sys.path.append(folder)
        # What was written there a moment ago is found, too.
        sys.path_importer_cache.pop(folder, None)


def search_last(folder: Path) -> None:
    """Search a folder after the installed packages that `python -m` has put before them."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", str(folder)):
        del sys.path[0]
    search_in([folder])


def absolute(text: str, folder: Path) -> str:
    """Return `file.py:name` with a relative file resolved in `folder`; any other text unchanged."""
    found = _FILE.fullmatch(text)
    if found is None:
        return text
    return (
        f"{os.path.abspath(folder / os.path.expanduser(os.path.expandvars(found['file'])))}:{found['name']}"
    )


def _own_file(module: str) -> Path | None:
    """Return the file of a module that lies in a folder of `search_in` itself, None for any other."""
    if "." in module:
        return None
    spec = importlib.machinery.PathFinder.find_spec(module, _own)
    if (
        spec is None
        or spec.origin is None
        or not spec.origin.endswith(".py")
        or spec.submodule_search_locations
    ):
        return None
    return Path(spec.origin)


def _is_elsewhere(module: str) -> bool:
    """True where a module of this name is part of Python or installed, and would be imported instead."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if module in sys.modules and (loaded is None or str(Path(loaded).parent) not in _own):
        return True
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) not in _own]
    return module in sys.stdlib_module_names or (
        importlib.machinery.PathFinder.find_spec(module, elsewhere) is not None
    )


def _existing(file: Path, failed: str) -> Path:
    if not file.is_file():
        raise ConfigError(f"{failed}: there is no file {str(file.absolute())!r}")
    return file.resolve()


def _load_file(file: Path) -> ModuleType:
    name = f"asyncrl_file_{file.stem}_{zlib.crc32(os.fsencode(file)):08x}"
    with _lock:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        if str(file.parent) not in sys.path:
            # Last, so that files beside it do not shadow what others import.
            sys.path.append(str(file.parent))
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def _not_found(module: str) -> str:
    installed = tuple(os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix))
    folders = dict.fromkeys(os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry or "."))
    own = [f for f in folders if not os.path.realpath(f).startswith(installed)]
    return (
        f"there is no module {module!r} in {', '.join(own) or 'the current folder'} or among the installed packages; "
        "start where it lies, set run.python_path, or give its file: path/to/file.py:name"
    )


def _described(error: BaseException) -> str:
    """Describe what an import raised, with file and line."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "importlib" not in f.filename and f.filename != __file__
    ]
    # A syntax error says its own place, and was raised nowhere.
    where = (
        f" ({frames[-1].filename}, line {frames[-1].lineno})"
        if frames and not isinstance(error, SyntaxError)
        else ""
    )
    return f"{type(error).__name__}: {error}{where}"
