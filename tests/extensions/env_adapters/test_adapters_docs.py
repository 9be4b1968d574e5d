"""What docs/adapters.md shows can be typed."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from asyncrl.env.registry import ENVS, load_env
from asyncrl.extensions.env_adapters.requirements import AdapterEnv

DOCS = (Path(__file__).parents[3] / "docs" / "adapters.md").read_text()
ADAPTERS = sorted(name for name, path in ENVS.items() if path.startswith("asyncrl.extensions.env_adapters."))


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_has_a_section_whose_settings_exist(name):
    section = DOCS.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]
    example = tomllib.loads(re.search(r"```toml\n(.*?)```", section, re.DOTALL).group(1))["env"]
    parameters = inspect.signature(load_env(name).__init__).parameters
    assert example["name"] == name
    assert set(example["config"]) <= set(parameters)
    required = {*load_env(name).required}
    assert required <= set(example["config"]), "the example must be complete"


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_names_its_library_and_extra_in_the_table(name):
    adapter = load_env(name)
    assert issubclass(adapter, AdapterEnv)
    row = next(line for line in DOCS.splitlines() if line.startswith(f"| `{name}` "))
    assert f"`{adapter.extra}`" in row if adapter.extra else "| none |" in row
