"""The models besides the policy that a run's objective reads, those of other processes included."""

from __future__ import annotations

from pathlib import Path

from asyncrl.config import Config
from asyncrl.credentials import Credentials
from asyncrl.endpoint import wait_for_addresses
from asyncrl.startup import LIMIT_FACTOR
from asyncrl.train.auxiliary_models import AuxiliaryModels
from asyncrl.train.callback_context import TrainerRun
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.models import load_auxiliary_models
from asyncrl.train.old_policy import OldPolicies
from asyncrl.train.old_policy_model import FOLDER


def open_auxiliary_models(run: TrainerRun, engine: TrainEngine) -> AuxiliaryModels:
    """Load the models, or connect to who has them. Call on every rank. Raises `DeadlineError`."""
    given, old_policies = run.arguments, None
    if given.old_policy:
        old_policies = open_old_policies(run.config, given.weights_dir, given.old_policy, given.credentials)
    return load_auxiliary_models(run.config, run.objective, engine, given.model, old_policies)


def open_old_policies(
    config: Config, weights_dir: Path, address: str, credentials: Credentials
) -> OldPolicies:
    """Return the trainer's side of the old-policy process. Raises `DeadlineError` without its address in time."""
    from asyncrl.services.old_policy.client import OldPolicyClient

    (url,) = wait_for_addresses([address], LIMIT_FACTOR * config.run.start_timeout_s)
    token = credentials.bearer("old_policy")
    client = OldPolicyClient(url, token, config.buffer.wait_timeout_s, config.outage_timeout_s)
    return OldPolicies(weights_dir / FOLDER, config.buffer.max_staleness, client)
