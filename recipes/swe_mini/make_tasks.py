"""Makes small repositories with a fault, each a task folder: `python make_tasks.py FOLDER [NUMBER]`.

Each holds a module, a test of it that fails, and what repairs it; every fifth is held out.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

WORDS = (
    "total",
    "price",
    "score",
    "width",
    "level",
    "speed",
    "share",
    "count",
    "delta",
    "ratio",
    "sales",
    "store",
)
FUNCTIONS = ("join", "merge", "scale", "apply", "blend", "shift")
OPERATORS = {"+": "the sum", "-": "the difference", "*": "the product"}
TEST = """
import importlib.util


def test_{function}():
    spec = importlib.util.spec_from_file_location("{module}", "/app/{module}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for a, b in ((7, 3), (2, 5), (10, 10)):
        assert module.{function}(a, b) == a {right} b
"""


def write_task(folder: Path, module: str, rng: random.Random) -> None:
    """Write one task folder."""
    function = rng.choice(FUNCTIONS)
    right, wrong = rng.sample(sorted(OPERATORS), 2)
    files = {
        "instruction.md": f"{function} in {module}.py must return {OPERATORS[right]} of a and b.\n",
        f"environment/{module}.py": f"def {function}(a, b):\n    return a {wrong} b\n",
        f"environment/test_{module}.py": f"from {module} import {function}\n\nassert {function}(7, 3) == 7 {right} 3\n",
        "tests/test_outputs.py": TEST.format(module=module, function=function, right=right),
        "solution/solve.sh": f"sed -i 's/a . b/a {right} b/' {module}.py\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main() -> None:
    target, number = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100
    rng = random.Random(0)
    # No two have a module of one name, so what is held out is new.
    modules = rng.sample([f"{a}_{b}" for a in WORDS for b in WORDS if a != b], number)
    for i, module in enumerate(modules):
        write_task(target / f"repository-{i:03d}", module, rng)


if __name__ == "__main__":
    main()
