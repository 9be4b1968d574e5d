"""Phases in which a trainer takes steps: its rate in several forms, and its memory beside the prediction."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from acceptance.context import Context
from acceptance.measure import (
    EAGER,
    GIB,
    NEEDS_CUDA,
    TRAINED,
    Found,
    dtype,
    model,
    seconds,
    shape,
    tried,
    words,
)
from bench.report import Figure, Omitted

Builder = Callable[[Any, Any, dict[str, Any]], Any]
"""What makes an optimizer, as in `asyncrl.train.engine.optimizers.BUILDERS`."""


def trainer_matrix(context: Context) -> Iterator[Found]:
    """Trained tokens a second and the peak of memory, by model and length of rows, and in forms that training does not
    take: whether it should, only a GPU can say."""
    names = list(TRAINED) if context.gpus else ["0.6B"]
    lengths = (4096, 16384, 32768) if context.gpus else (64, 128)
    for name in names:
        yield from tried(name, partial(_rates, context, name, lengths))
    # Each of these loads its model once more: those that decide most come first.
    for length in lengths[1:]:
        for name in names:
            for form in ("compiled MLP and norms", "FlexAttention"):
                label = f"{name}, rows of {length}, {form}"
                yield from tried(label, partial(_changed, context, name, length, form, label))
        if length == lengths[1]:
            for name in names:
                for fused in (False, True):
                    label = f"{name}, {'fused' if fused else 'foreach'} AdamW"
                    yield from tried(label, partial(_optimizer, context, name, length, fused, label))


def _rates(context: Context, name: str, lengths: tuple[int, ...]) -> Iterator[Found]:
    """Yield what one model reaches in the forms that need no other one."""
    trainer = _Trainer(context, name)
    for length in lengths:
        yield from trainer.measured(length, f"{name}, rows of {length}")
    chunks = (2**26, 2**28) if context.gpus else (2**16, 2**18)
    for chunk in chunks:
        with head_chunk(chunk):
            label = f"{name}, rows of {lengths[1]}, head chunk of 2^{chunk.bit_length() - 1} logits"
            yield from trainer.measured(lengths[1], label)
    for length in lengths[1:]:
        label = f"{name}, rows of {length}, cuDNN's attention first"
        if not context.gpus:
            yield Omitted(label, NEEDS_CUDA)
            continue
        with _cudnn_first():
            yield from trainer.measured(length, label)


def _changed(context: Context, name: str, length: int, form: str, label: str) -> Iterator[Found]:
    from asyncrl.train.models.prefix_tree import FLEX, enable_prefix_trees

    if form == "FlexAttention" and not context.gpus:
        yield Omitted(label, f"{NEEDS_CUDA}: it has no backward pass on a CPU")
        return

    def compiled(policy: Any) -> None:
        for module in policy.modules():
            if module.__class__.__name__.endswith(("MLP", "RMSNorm")):
                module.compile(backend="inductor" if context.gpus else "aot_eager")

    def flex(policy: Any) -> None:
        assert enable_prefix_trees(policy, FLEX)

    trainer = _Trainer(context, name, flex if form == "FlexAttention" else compiled)
    yield from trainer.measured(length, label)


def _optimizer(context: Context, name: str, length: int, fused: bool, label: str) -> Iterator[Found]:
    """Yield the peak and the time of the optimizer's step in one form of AdamW."""
    with adamw(fused):
        trainer = _Trainer(context, name)
    accumulated, applied, _ = trainer.step(length)
    accumulated(), applied()
    accumulated()
    yield Figure(f"{label}: peak of its step", trainer.peak(applied) / GIB, "GiB")
    accumulated()
    yield Figure(f"{label}: its step", seconds(applied, 1) * 1e3, "ms")


@contextmanager
def head_chunk(logits: int) -> Iterator[None]:
    """Have the head compute so many logits at once, whatever is free, while it is open."""
    from asyncrl.train.models import token_scores

    before = token_scores.CHUNK_LOGITS, token_scores.MOST_LOGITS
    token_scores.CHUNK_LOGITS = token_scores.MOST_LOGITS = logits
    try:
        yield
    finally:
        token_scores.CHUNK_LOGITS, token_scores.MOST_LOGITS = before


@contextmanager
def adamw(fused: bool) -> Iterator[None]:
    """Have trainers that are made while it is open update by one kernel for each tensor, or by torch's lists of them
    (foreach), on any device."""
    from torch.optim import AdamW

    from asyncrl.train.engine.optimizers import BUILDERS

    way: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
    before = BUILDERS["adamw"]
    BUILDERS["adamw"] = lambda trained, train, settings: AdamW([one for _, one in trained], **way, **settings)
    try:
        yield
    finally:
        BUILDERS["adamw"] = before


def _cudnn_first() -> AbstractContextManager[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return sdpa_kernel([getattr(SDPBackend, one) for one in order], set_priority=True)


class _Trainer:
    """A model with its optimizer, which takes steps of one row each. change: applied to the model."""

    def __init__(
        self, context: Context, name: str, change: Callable[[Any], Any] = lambda policy: None
    ) -> None:
        from asyncrl.algo.objective import build_objective
        from asyncrl.config import load_config
        from asyncrl.train.engine.deepspeed_engine import TrainEngine
        from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained
        from testing.step_memory import live_bytes

        # It may be made first, on the device.
        path = str(model(context, name))
        _collect()
        self._context, self._name, self._before = context, name, live_bytes()
        config = load_config("gridworld_grpo", words(context, 128, *TRAINED[name]))
        self._objective = build_objective(config.algo)
        self._engine = TrainEngine(
            load_trained(config, self._objective, path), config.train, config.model.dtype
        )
        change(self._engine.engine.module.model)
        self._auxiliary = load_auxiliary_models(config, self._objective, self._engine, path)

    def step(self, tokens: int) -> tuple[Callable[[], Any], Callable[[], Any], int]:
        """Return what computes the gradients of a step of rows of so many tokens, what applies them, and the rows."""
        from asyncrl.config import load_config
        from asyncrl.extensions.planning.training import longest_rows
        from asyncrl.train.step.gradient import Step, accumulate, apply
        from asyncrl.train.step.ragged import Ragged
        from asyncrl.train.step.step_settings import StepSettings

        config = load_config("gridworld_grpo", words(self._context, tokens, *TRAINED[self._name]))
        batch = longest_rows(config, self._context.shape["vocab_size"])
        settings = StepSettings.of(config)
        tensors = self._auxiliary.step_tensors(self._engine, batch, settings, 1)
        tensors.tensors["advantages"] = Ragged.full(batch.counts)
        step = Step(
            self._engine, self._objective, self._auxiliary, batch, tensors, settings, 1e-6, 0.0, lambda found: None,
        )  # fmt: skip
        rows = list(range(len(batch.trajectories)))
        return partial(accumulate, step, rows), partial(apply, step), len(rows)

    def measured(self, tokens: int, label: str) -> Iterator[Found]:
        """Yield the rate and the peak of steps of rows of so many tokens."""
        accumulated, applied, rows = self.step(tokens)
        took_s = seconds(lambda: (accumulated(), applied()), 2)
        yield Figure(label, rows * tokens / took_s, "tokens/s")
        yield Figure(f"{label}: peak", self.peak(lambda: (accumulated(), applied())) / GIB, "GiB")

    def peak(self, work: Callable[[], Any]) -> int:
        """Return the most bytes that `work` has at once, with all that this trainer keeps."""
        from testing.step_memory import live_bytes, peak_bytes

        gc.collect()
        return live_bytes() - self._before + peak_bytes(work)


def _collect() -> None:
    """Free what the trainer before has kept."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def predicted_memory(context: Context) -> Iterator[Found]:
    """Predicted peaks over measured ones, of loading and of steps, of a whole model and of an adapter; then what an
    engine frees when it sleeps."""
    lora = ("lora.rank=16",)
    cases = (("4B", lora), ("1.7B", ())) if context.gpus else (("0.6B", lora), ("0.6B", ()))
    for name, more in cases:
        yield from tried(f"{name} {' '.join(more)}".strip(), partial(_predicted, context, name, more))
    yield from tried("sleep", partial(_asleep, context))


def _predicted(context: Context, name: str, more: tuple[str, ...]) -> Iterator[Found]:
    from asyncrl.config import load_config
    from asyncrl.extensions.planning.predict import trainer_memory
    from asyncrl.extensions.planning.training import measure_step
    from testing.step_memory import measured_step

    config = load_config("gridworld_grpo", words(context, 4096 if context.gpus else 128, *more))
    kind = shape(context, name) | {"model_type": "qwen3", "max_position_embeddings": 65536}
    moments = trainer_memory(config, measure_step(config, {"policy": kind}))
    predicted = {moment: sum(item.bytes for item in items) for moment, items in moments.items()}
    path, label = str(model(context, name)), f"{name} {' '.join(more)}".strip()
    _collect()
    for moment, size in measured_step(config, path, kind["vocab_size"]).items():
        yield Figure(f"{label}: {moment}, measured", size / GIB, "GiB")
        yield Figure(f"{label}: {moment}", predicted[moment] / size, "predicted over measured")


def _asleep(context: Context) -> Iterator[Found]:
    """Yield the seconds in which an engine falls asleep and wakes, and the bytes that it frees meanwhile."""
    import torch

    from asyncrl.extensions.sleep.switch import SleepSwitch

    _collect()
    by_turns: dict[str, Any] = {"placement": {"sleep": True}, "train": {"schedule": "synchronous"}}
    with context.engines(
        model(context, "0.6B"),
        dtype(context),
        {"sleeping": {"max_num_seqs": 16, "extra_args": EAGER}},
        **by_turns,
    ) as ((url, token),):
        switch = SleepSwitch([url], token, 60.0)
        for when in ("first", "again"):
            free = [_free(torch)]
            for name, asleep in (("falls asleep", True), ("wakes", False)):
                start = time.perf_counter()
                switch(asleep)
                yield Figure(f"engine {name}, {when}", time.perf_counter() - start, "s")
                free.append(_free(torch))
            if not context.gpus:
                yield Omitted(f"freed asleep, {when}", f"{NEEDS_CUDA}: on a CPU vLLM frees nothing")
                continue
            yield Figure(f"freed asleep, {when}", (free[1] - free[0]) / GIB, "GiB")
            yield Figure(f"taken back, {when}", (free[1] - free[2]) / GIB, "GiB")


def _free(torch: Any) -> int:
    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0
