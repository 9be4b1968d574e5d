"""What DeepSpeed keeps for a trained model on each rank: weights, float32 master, moments, gradients, buffers.

P trained and N all parameters, w bytes of a weight (2 or 4), R ranks. ZeRO keeps a master
copy in float32, too.

| | weights | master | moments | gradients |
|---|---|---|---|---|
| stage 0 | wN | - (4P in bfloat16) | 8P | 4P |
| stage 1 | wN | 4P/R | 8P/R | wP, and 4P/R at the step; bfloat16: 4P all the time, and wP during a micro-batch |
| stage 2 | wN | 4P/R | 8P/R | 4P/R |
| stage 3 | wN/R, and what is gathered | 4P/R | 8P/R | 4P/R all the time |

The moments are AdamW's; other optimizers have others (`training.py`). With `offload_optimizer`, which is for
stage 3, master, moments and gradients are in host memory, with `offload_param` the weights' share, too.

Stages 1 to 3 reduce gradients through a buffer of `reduce_bucket_size` elements, which is float32 where gradients are
reduced so. The numbers are those of `deepspeed.runtime` (`zero/stage_1_and_2.py`, `zero/stage3.py`,
`bf16_optimizer.py`); tests compare them with what real steps allocate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEFAULT_BUCKET = 500_000_000
LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's default of `stage3_max_live_parameters`: weights that are gathered at once."""
PERSISTENT = 100_000
"""DeepSpeed's default of `stage3_param_persistence_threshold`: parameters with fewer elements stay gathered."""
FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Size:
    """How large a model is."""

    parameters: int
    trained: int
    bytes: int
    """The bytes of all its weights."""
    trained_bytes: int
    moments: int
    """Bytes that the optimizer keeps besides the weights and their master copy, of all trained parameters."""
    persistent: int = 0
    """Bytes of the parameters that stay gathered under ZeRO-3."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes on one rank for one trained model."""

    weights: int
    """In the model's own type, without what is gathered for a pass."""
    gathered: int
    """While the model computes, besides."""
    master: int
    moments: int
    gradients: int
    """During a backward pass that is not the first of its step."""
    buckets: int
    """Buffers through which gradients are reduced."""
    buckets_stay: bool
    """Whether they are there between micro-batches too, and not only from the first gradient on."""
    between: int
    """Of gradients and buffers, what is there between steps, too."""
    step_gradients: int
    """While the optimizer's step is taken, in place of `gradients` and `buckets`."""
    step: int
    """What the optimizer's step needs besides."""
    loading: int
    """While the model is loaded and its states are made."""
    host: int = 0
    """In host memory instead."""

    @property
    def states(self) -> int:
        """What is there all the time."""
        return self.weights + self.master + self.moments


def gathered_weights(num_bytes: int, persistent: int, dtype: str) -> int:
    """Return how much of a model that is spread over ranks is gathered at once, at most, without what stays so."""
    return max(0, min(num_bytes, LIVE_PARAMETERS * (2 if dtype == "bfloat16" else FLOAT32)) - persistent)


def kept(size: Size, deepspeed: dict[str, Any], ranks: int, fused: bool = False) -> Kept:
    """Return what a rank keeps under a DeepSpeed configuration.

    fused: the optimizer updates each entry in one kernel, and keeps no roots of second moments beside them.
    """
    zero = deepspeed["zero_optimization"]
    stage, bf16 = zero["stage"], deepspeed.get("bf16", {}).get("enabled", False)
    float32_sums = deepspeed.get("data_types", {}).get("grad_accum_dtype") in ("fp32", "float32")
    whole, share = FLOAT32 * size.trained, -(-FLOAT32 * size.trained // ranks)
    moments = -(-size.moments // ranks)
    bucket = zero.get("reduce_bucket_size", DEFAULT_BUCKET) * (2 if bf16 else FLOAT32)
    if stage == 0:
        return Kept(
            weights=size.bytes,
            gathered=0,
            master=whole if bf16 else 0,
            moments=size.moments,
            gradients=whole if float32_sums else size.trained_bytes,
            buckets=0,
            buckets_stay=False,
            between=0,
            step_gradients=whole,
            step=0 if fused else whole,
            loading=size.bytes + (whole if bf16 else 0),
        )
    if stage == 3:
        own = -(-size.bytes // ranks)
        away, weights_away = (f"offload_{kind}" in zero for kind in ("optimizer", "param"))
        dtype = "bfloat16" if bf16 else "float32"
        spread = ranks > 1 or weights_away
        persistent = size.persistent if spread else 0
        gathered = gathered_weights(size.bytes, persistent, dtype)
        if deepspeed.get("communication_data_type") in ("fp32", "float32"):
            bucket = zero.get("reduce_bucket_size", DEFAULT_BUCKET) * FLOAT32
        weights, states = persistent + (0 if weights_away else own), 0 if away else share
        return Kept(
            weights=weights,
            gathered=gathered if spread else 0,
            master=states,
            moments=0 if away else moments,
            gradients=states,
            buckets=bucket,
            buckets_stay=True,
            between=states + bucket,
            step_gradients=states + bucket,
            step=(1 if fused else 2) * states,
            # The weights are divided as they are loaded. What looks at the model then gathers them, alone, too.
            loading=weights + gathered + 2 * states + bucket,
            host=(2 * share + moments if away else 0) + (own if weights_away else 0),
        )
    if stage == 1 and bf16 and float32_sums:
        during = 0 if deepspeed["bf16"].get("immediate_grad_update") else size.trained_bytes
        return Kept(
            weights=size.bytes,
            gathered=0,
            master=share,
            moments=moments,
            gradients=whole + during,
            buckets=0,
            buckets_stay=False,
            between=whole,
            step_gradients=whole,
            step=(0 if fused else share) + min(bucket * min(2, ranks), whole),
            loading=size.bytes + max(size.trained_bytes, share + whole),
        )
    gradients = size.trained_bytes if stage == 1 else (share if float32_sums else size.trained_bytes // ranks)
    averaged = share if float32_sums or not bf16 else size.trained_bytes // ranks
    return Kept(
        weights=size.bytes,
        gathered=0,
        master=share,
        moments=moments,
        gradients=gradients,
        # In bfloat16 a reduction in float32 works on copies.
        buckets=3 * bucket if bf16 and float32_sums else bucket,
        buckets_stay=stage == 1,
        between=0,
        step_gradients=averaged,
        # The flat gradient, and the roots of the second moments.
        step=(1 if fused else 2) * share + (averaged if averaged < share else 0),
        # A flat copy of the trained weights, which is made on the host where the GPU has no room; once the separate
        # ones are gone, the master and a gradient of zeros.
        loading=size.bytes + max(size.trained_bytes, 2 * share),
    )
