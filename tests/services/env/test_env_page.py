"""What docs/environments.md says of the service is so."""

import re
from pathlib import Path

from asyncrl.config import EnvConfig
from asyncrl.env.host import EnvHost
from asyncrl.services.env.service import OWN_STATUSES, create_env_app
from asyncrl.services.http.app import STATUSES
from tests.credentials import RUN

PAGE = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
SECTION = PAGE.split("## Where sessions run")[1].split("\n## ")[0]


def test_its_settings_are_keys_of_a_recipe():
    keys = re.findall(r"^\| `env\.(\w+)` \|", SECTION, re.MULTILINE)
    assert len(keys) == 5 and "| `rollout.lease_s` |" in SECTION
    assert set(keys) <= set(EnvConfig.model_fields)


def test_its_routes_are_all_there_are():
    app = create_env_app(EnvHost(), RUN.access("env"))
    documented = {
        path.replace("{session_id}", "ID").replace("{name}", "NAME") for path in app.openapi()["paths"]
    }
    named = set(re.findall(r"(/(?:v1/|metrics|healthz|openapi)[\w/.]*)", SECTION))
    assert named == documented | set(app.state.hot_routes) | {"/openapi.json"}


def test_its_statuses_are_those_of_the_errors():
    statuses = set((STATUSES | OWN_STATUSES).values()) - {400, 422}
    assert set(
        map(int, re.findall(r"^\| [^|]+ \| ([2-5]\d\d)\b(?! MiB)", SECTION, re.MULTILINE))
    ) == statuses | {200}
