"""What the phases share: how something is timed, and the models that are measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from acceptance.context import Context, NotRun
from bench.report import Figure, Omitted

Found = Figure | Omitted
GIB = 2**30
QWEN3 = {
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "1.7B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "4B": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
}
"""What differs between the shapes of Qwen3."""
TRAINED: dict[str, tuple[str, ...]] = {"0.6B": (), "1.7B": (), "4B": ("lora.rank=16",)}
"""How each is trained."""
ROUNDS = 3
NEEDS_CUDA = "needs CUDA"
EAGER = ["--enforce-eager"]
"""Arguments of engines whose sampling is not measured: they start sooner without graphs."""


def tried(name: str, measure: Callable[[], Iterable[Found]]) -> Iterator[Found]:
    """Yield what `measure` finds. What fails in it is data, named `name`, and the phase goes on."""
    problem: Omitted | None = None
    try:
        yield from measure()
    except NotRun as reason:
        problem = Omitted(name, str(reason))
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        problem = Omitted(name, f"{type(error).__name__}: {text}"[:300], failed=True)
    if problem is not None:
        yield problem


def device() -> str:
    """Return where the phases compute."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def dtype(context: Context) -> str:
    """Return the type that models are measured in."""
    return "bfloat16" if context.gpus else "float32"


def shape(context: Context, name: str) -> dict[str, Any]:
    """Return a model's shape: that of a Qwen3 on a GPU, a small one on a CPU."""
    return context.shape | (QWEN3[name] if context.gpus else {})


def model(context: Context, name: str) -> Path:
    """Return a folder with a randomly initialised model of that shape."""
    return context.model(**shape(context, name))


def words(context: Context, tokens: int, *more: str) -> list[str]:
    """Return settings of a run whose rows have so many tokens."""
    return [
        f"engine.max_model_len={tokens}", f"train.micro_batch_tokens={tokens}", f"model.dtype={dtype(context)}",
        "train.gradient_checkpointing=true", "train.zero_stage=1", *more,
    ]  # fmt: skip


def seconds(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Return the shortest time of some rounds, the device's work included; where there are several, after one more."""
    import torch

    def once() -> float:
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start

    if rounds > 1:
        once()
    return min(once() for _ in range(rounds))
