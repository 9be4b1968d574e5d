"""What the Grafana dashboard asks Prometheus, compared with what services expose."""

import json
import re

from prometheus_client.parser import text_string_to_metric_families

from asyncrl.extensions.monitor.command import DASHBOARD

SELECTOR = re.compile(r"(asyncrl_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')


def expressions() -> list[str]:
    """Return the PromQL of all panels and variables."""
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    return asked + variables


def missing(prefix: str, exposed: str) -> list[str]:
    """Return the selectors of metrics with this prefix that nothing exposed answers, each with its label.

    A counter of which nothing was counted yet is exposed without a sample: its name is there.
    """
    families = list(text_string_to_metric_families(exposed))
    samples = [one for family in families for one in family.samples]
    declared = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    wrong = []
    for name, matchers in SELECTOR.findall("\n".join(expressions())):
        if not name.startswith(prefix):
            continue
        found = [one.labels for one in samples if one.name == name]
        if not found and name not in declared:
            wrong.append(name)
        for label, kind, value in MATCHER.findall(matchers):
            values = {labels.get(label) for labels in found}
            asked = [] if value == "$run" else value.split("|") if kind == "=~" else [value]
            if values <= {None} or not set(asked) <= values:
                wrong.append(f"{name} {label} {value}")
    return wrong
