"""The trainer's side of the process that scores tokens under the versions which sampled them."""

from __future__ import annotations

from asyncrl.endpoint import wait_for_addresses
from asyncrl.extensions.old_policy.client import OldPolicyClient
from asyncrl.extensions.old_policy.model import FOLDER
from asyncrl.extensions.old_policy.old_policies import OldPolicies
from asyncrl.startup import LIMIT_FACTOR
from asyncrl.train.step.part_table import PartContext


def old_policies(context: PartContext) -> OldPolicies:
    """Return the part of a run with `train.old_policy = "process"`. Raises `DeadlineError` without its address in
    time."""
    config, given = context.config, context.arguments
    assert given is not None
    (url,) = wait_for_addresses([given.beside["old_policy"]], LIMIT_FACTOR * config.run.start_timeout_s)
    token = given.credentials.bearer("old_policy")
    client = OldPolicyClient(url, token, config.buffer.wait_timeout_s, config.outage_timeout_s)
    return OldPolicies(given.weights_dir / FOLDER, config.buffer.max_staleness, client)
