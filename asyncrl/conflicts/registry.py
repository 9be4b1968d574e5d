"""The features that exclude others: those whose file is here, with a line below, and those of the extensions."""

from __future__ import annotations

from asyncrl.conflicts import (
    base_model,
    evaluation,
    extensions,
    keep_kv,
    no_signal,
    offload_activations,
    pipeline_parallel,
    policies,
    reference,
    schedule,
    staleness_control,
    tasks,
    token_budget,
    weight_transfer,
)
from asyncrl.conflicts.protocol import Conflicts
from asyncrl.extensions.table import rows

FEATURES: tuple[Conflicts, ...] = (
    weight_transfer.CONFLICTS,
    reference.CONFLICTS,
    staleness_control.CONFLICTS,
    base_model.CONFLICTS,
    schedule.CONFLICTS,
    token_budget.CONFLICTS,
    pipeline_parallel.CONFLICTS,
    keep_kv.CONFLICTS,
    evaluation.CONFLICTS,
    tasks.CONFLICTS,
    policies.CONFLICTS,
    no_signal.CONFLICTS,
    offload_activations.CONFLICTS,
    extensions.CONFLICTS,
    *(row.load() for row in rows("conflicts")),
)
"""In the order in which they are asked: of several problems the first is shown."""
