"""The policy of an earlier version, from the file by which its weights were published to the engines.

The publisher keeps the file of the previous version. If it can be read, a forward pass runs with its weights, while the
trained ones stay untouched. Under ZeRO-3, where no rank holds whole parameters, they take the place of the trained ones
meanwhile, which are put back bit by bit; there each rank keeps its share of the version before, and the file is read
where none is kept: after a start, or once a batch was refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.func import functional_call

from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.checkpoint_form import form_of, from_checkpoint
from asyncrl.train.models.policy import NO_EXTRAS, Extras
from asyncrl.train.models.token_scores import free_bytes
from asyncrl.weights.files import read_weights, weights_path

log = logging.getLogger(__name__)
_warned = False
"""Whether it was said that there is no room."""
Scorer = Callable[..., dict[str, Tensor]]
"""Token ids [B,T], mask [B,T], temperature, `want` and `extras` to `logp` [B,T], as `PolicyModel.forward`."""


def readable(engine: TrainEngine, folder: Path | None, versions: Iterable[int]) -> list[int]:
    """Return those of `versions` whose weights every rank that reads them finds and has room for. A collective."""
    wanted = sorted(versions)
    # A rank with a part of each layer has no use for whole ones.
    if folder is None or not wanted or engine.layout.ranks > 1:
        return []
    there = [_is_kept(engine, version) or _fits(engine, weights_path(folder, version)) for version in wanted]
    found = torch.tensor([int(one) for one in there], device=engine.device)
    engine.all_reduce(found, "min")
    return [version for version, is_there in zip(wanted, found.tolist(), strict=True) if is_there]


@contextmanager
def earlier_policy(engine: TrainEngine, folder: Path, version: int) -> Iterator[Scorer | None]:
    """Give the forward pass of an earlier version; None on all ranks where one cannot read it. A collective."""
    if _is_kept(engine, version):
        with engine.kept_shares.swapped():
            yield engine.outputs
        return
    module = engine.engine.module
    weights: dict[str, Tensor] = {}
    readable_here = True
    if _reads(engine):
        try:
            file = dict(read_weights(weights_path(folder, version)))
            for name, parameter in form_of(module.model).parameters(module.model):
                weights[name] = from_checkpoint(module.model, name, engine.whole_shape(parameter), file)
        except (OSError, SafetensorError, KeyError):
            readable_here = False
    whole = torch.tensor([int(readable_here)], device=engine.device)
    engine.all_reduce(whole, "min")
    if not int(whole):
        yield None
    elif engine.stage == 3:
        with engine.other_weights(weights):
            yield engine.outputs
    else:
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        own = {
            names[id(parameter)]: weights[name].to(parameter.device, parameter.dtype)
            for name, parameter in form_of(module.model).parameters(module.model)
        }

        def score(
            token_ids: Tensor,
            mask: Tensor,
            temperature: float,
            want: tuple[str, ...] = (),
            extras: Extras = NO_EXTRAS,
        ) -> dict[str, Tensor]:
            given = (token_ids.to(engine.device), mask.to(engine.device), temperature, want)
            return functional_call(module, own, given, {"extras": extras})

        yield score


def _is_kept(engine: TrainEngine, version: int) -> bool:
    """Whether each rank has its share of the version; the same on all."""
    return engine.stage == 3 and engine.kept_shares.version == version


def _reads(engine: TrainEngine) -> bool:
    """True on the ranks that read the file: under ZeRO-3 the first one gives the others their shares."""
    return engine.stage != 3 or engine.rank == 0


def _fits(engine: TrainEngine, path: Path) -> bool:
    """True when the file exists and an accelerator has twice its size free, as the forward pass needs memory, too.

    Under ZeRO-3 the shares of the trained weights are used, and only the rank that reads must find the file.
    """
    if not _reads(engine):
        return True
    try:
        num_bytes = path.stat().st_size
    except OSError:
        return False
    if engine.stage == 3 or engine.device.type != "cuda":
        return True
    free = free_bytes(engine.device)
    if free > 2 * num_bytes:
        return True
    global _warned
    if not _warned:
        _warned = True
        log.warning(
            "log-probabilities of tokens that an earlier version sampled are not checked: its weights need twice "
            "%.1f GiB, and %.1f GiB of the GPU are free; a smaller train.micro_batch_tokens leaves more, and "
            "train.zero_stage=3 needs none", num_bytes / 2**30, free / 2**30,
        )  # fmt: skip
    return False
