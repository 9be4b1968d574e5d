"""A walk along the environment service's OpenAPI document: odd requests by the hundred, none of which breaks it."""

from collections import Counter

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings

from asyncrl.env.host import EnvHost
from asyncrl.services.env.service import create_env_app
from tests.app_thread import AppThread
from tests.credentials import AUTHORIZED, RUN
from tests.packages import ImportedWhenUsed

schemathesis = ImportedWhenUsed("schemathesis")
REQUESTS = 100
"""Of each kind to each operation."""
ENVS = ["gridworld", "calculator", "textgame", "countdown", "no such thing", "json:loads", "..os:", "a:b:c"]
WALK = settings(
    max_examples=REQUESTS,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def checks():
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    return [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    host = EnvHost(max_sessions=10)
    service = AppThread(create_env_app(host, RUN.access("env")), tmp_path_factory.mktemp("env"))
    yield service.url, host
    service.close()


@pytest.fixture(scope="module")
def operations(served):
    """Every documented operation; names of environments are drawn from a few, or no environment would open."""
    document = requests.get(f"{served[0]}/openapi.json", headers=AUTHORIZED, timeout=10).json()
    document["components"]["schemas"]["TaskBody"]["properties"]["env"]["enum"] = ENVS
    schema = schemathesis.openapi.from_dict(document)
    return {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}


def test_every_operation_is_documented(operations):
    assert set(operations) == {
        "GET /healthz",
        "POST /v1/sessions",
        "GET /v1/sessions/{session_id}",
        "DELETE /v1/sessions/{session_id}",
        "POST /v1/sessions/{session_id}/step",
        "POST /v1/sessions/{session_id}/renew",
        "GET /v1/envs",
        "GET /v1/envs/{name}/schema",
        "GET /v1/status",
        "GET /metrics",
    }


@pytest.mark.slow
def test_no_request_is_answered_by_a_server_error_or_by_what_the_document_does_not_say(served, operations):
    url, host = served
    seen = Counter()
    with requests.Session() as connection:
        connection.headers.update(AUTHORIZED)
        for label, operation in sorted(operations.items()):
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                if mode is schemathesis.GenerationMode.NEGATIVE and not operation.body:
                    continue
                for known in (True, False) if "session_id" in label else (False,):
                    walk(url, host, connection, operation, mode, known, seen)
    for wanted in (
        ("POST /v1/sessions", 201),
        ("POST /v1/sessions", 400),
        ("POST /v1/sessions", 429),
        ("POST /v1/sessions/{session_id}/step", 200),
        ("POST /v1/sessions/{session_id}/step", 409),
        ("POST /v1/sessions/{session_id}/step", 410),
        ("GET /v1/sessions/{session_id}", 200),
        ("GET /v1/sessions/{session_id}", 410),
    ):
        assert seen[wanted] > 0, f"{wanted} was not reached: {sorted(seen.items())}"
    assert seen.total() > 1000


def walk(url, host, connection, operation, mode, known, seen):
    """Send `REQUESTS` generated requests; to a live session where it should be `known`."""

    @seed(0)
    @WALK
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        if known:
            task = {"env": "gridworld"}
            if not host.sessions:
                connection.post(f"{url}/v1/sessions", json={"task": task}, timeout=10).raise_for_status()
            case.path_parameters = {"session_id": next(iter(host.sessions))}
        response = case.call(base_url=url, session=connection, timeout=30)
        case.validate_response(response, checks=checks())
        seen[operation.label, response.status_code] += 1

    send()
