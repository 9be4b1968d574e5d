"""The setting of batch-invariant kernels, a key of `[engine]`."""

from __future__ import annotations

from asyncrl.config_sections import Section, Seldom


class BatchInvarianceConfig(Section):
    """A key of `[engine]`."""

    batch_invariant: Seldom[bool] = False
    """Sample by kernels whose results do not depend on what else is in the batch (VLLM_BATCH_INVARIANT): slower, and
    for GPUs alone."""
