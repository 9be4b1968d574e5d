"""The phases of a short acceptance run, for a GPU that is there for ten minutes: what decides most, first.

Each phase yields its figures as it finds them, so that a phase whose time is up keeps what it has. On a CPU the same
code runs with small models.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from acceptance.context import Context, metrics
from acceptance.parts import GIB, PARTS
from bench.report import Figure

Phase = Callable[[Context], Iterator[Figure]]
PHASES: dict[str, tuple[float, Phase]] = {}
"""Seconds that each may take, and what it does, in the order in which they run."""
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
TRAINED = {"0.6B": (), "1.7B": (), "4B": ("lora.rank=16",)}
LAST = ("engine_throughput", "transports", "resume", "placement_shared", "features")
"""Parts of the whole acceptance run that have never run on a GPU; the last phase runs them at once."""
ROUNDS = 3


def phase(limit_s: float) -> Callable[[Phase], Phase]:
    """Register a phase under its function's name."""

    def registered(function: Phase) -> Phase:
        PHASES[function.__name__] = (limit_s, function)
        return function

    return registered


@phase(20)
def copy_rates(context: Context) -> Iterator[Figure]:
    """Bytes a second between device and host, through each kind of host memory that publishing could use."""
    import torch

    device, size = _device(), 2**30 if context.gpus else 2**26
    source = torch.ones(size, dtype=torch.uint8, device=device)
    reused = torch.empty(size, dtype=torch.uint8)
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    file = folder / f"asyncrl-copy-{os.getpid()}"
    try:
        file.write_bytes(b"\0" * size)
        mapped = torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)
        kinds: dict[str, Callable[[], Any]] = {
            "fresh pages": lambda: source.to("cpu", copy=True),
            "reused pages": lambda: reused.copy_(source),
            "shared memory": lambda: mapped.copy_(source),
        }
        if context.gpus:
            pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            kinds["pinned"] = lambda: pinned.copy_(source, non_blocking=True)
        yield from (
            Figure(f"to the host, {name}", size / _seconds(work) / 1e9, "GB/s")
            for name, work in kinds.items()
        )
        if context.gpus:
            cudart: Any = torch.cuda.cudart()
            cudart.cudaHostRegister(mapped.data_ptr(), size, 0)
            both = {
                "to the host": lambda: mapped.copy_(source, non_blocking=True),
                "to the device": lambda: source.copy_(mapped, non_blocking=True),
            }
            yield from (
                Figure(f"{way}, registered shared memory", size / _seconds(work) / 1e9, "GB/s")
                for way, work in both.items()
            )
            cudart.cudaHostUnregister(mapped.data_ptr())
        yield Figure("to the device, pageable", size / _seconds(lambda: source.copy_(reused)) / 1e9, "GB/s")
    finally:
        file.unlink(missing_ok=True)


@phase(150)
def trainer_matrix(context: Context) -> Iterator[Figure]:
    """Trained tokens a second and the peak of memory, by model and length of rows."""
    import torch

    lengths = (4096, 16384, 32768) if context.gpus else (64, 128)
    for name in TRAINED if context.gpus else ("0.6B",):
        for length in lengths:
            if context.gpus:
                torch.cuda.reset_peak_memory_stats()
            step, rows = _step(context, name, length)
            seconds = _seconds(step, 2)
            yield Figure(f"{name}, rows of {length}", rows * length / seconds, "tokens/s")
            if context.gpus:
                yield Figure(
                    f"{name}, rows of {length}: peak", torch.cuda.max_memory_allocated() / GIB, "GiB"
                )
        yield from _other_forms(context, name, lengths[1]) if name == "0.6B" else ()


def _other_forms(context: Context, name: str, length: int) -> Iterator[Figure]:
    """Yield the rates of forms that training does not take: whether it should, only a GPU can say."""
    from asyncrl.train.models.prefix_tree import FLEX, enable_prefix_trees

    def compiled(model: Any) -> None:
        for module in model.modules():
            if module.__class__.__name__.endswith(("MLP", "RMSNorm")):
                module.compile(backend="inductor" if context.gpus else "aot_eager")

    def flex(model: Any) -> None:
        assert enable_prefix_trees(model, FLEX)

    forms: dict[str, tuple[Callable[[Any], Any], bool]] = {
        "cuDNN's attention first": (lambda model: None, True),
        "compiled MLP and norms": (compiled, False),
    }
    if context.gpus:
        # It has no backward pass on a CPU.
        forms["FlexAttention"] = flex, False
    for form, (change, cudnn) in forms.items():
        step, rows = _step(context, name, length, change)
        with _cudnn_first() if cudnn else nullcontext():
            seconds = _seconds(step, 2)
        yield Figure(f"{name}, rows of {length}, {form}", rows * length / seconds, "tokens/s")


def _cudnn_first() -> AbstractContextManager[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return sdpa_kernel([getattr(SDPBackend, one) for one in order], set_priority=True)


@phase(80)
def publish_breakdown(context: Context) -> Iterator[Figure]:
    """What writing a version takes, part by part."""
    import torch
    from safetensors.torch import save_file

    from asyncrl.weights.chunks import parts_checksum
    from asyncrl.weights.files import HostCopies, verify_weights, write_weights

    for name in QWEN3 if context.gpus else ("0.6B",):
        elements = {"0.6B": 596e6, "1.7B": 1720e6, "4B": 4022e6}[name] if context.gpus else 4e6
        each = int(elements / 64)
        tensors = [(f"w{n}", torch.ones(each, dtype=torch.bfloat16, device=_device())) for n in range(64)]
        size = 64 * each * 2
        yield Figure(f"{name}: version", size / 1e9, "GB")
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            copied: dict[str, torch.Tensor] = {}
            host = HostCopies()
            for when in ("copied", "copied again"):
                yield Figure(f"{name}: {when}", _seconds(lambda: copied.update(host.of(tensors)), 1), "s")  # noqa: B023
            file = Path(folder) / "weights.safetensors"
            yield Figure(f"{name}: saved", _seconds(lambda: save_file(copied, str(file)), 1), "s")  # noqa: B023
            yield Figure(f"{name}: checksum", _seconds(lambda: parts_checksum(file), 1), "s")  # noqa: B023
            file.unlink()
            start = time.perf_counter()
            written = write_weights(folder, 1, tensors)
            yield Figure(f"{name}: written in all", time.perf_counter() - start, "s")
            yield Figure(f"{name}: verified", verify_weights(written), "s")


@phase(70)
def decode_calibration(context: Context) -> Iterator[Figure]:
    """Sampled tokens a second by the number of sequences and the length of their prompts: the simulator's constants."""
    numbers, prompts, tokens = ((64, 128, 256), (512, 2048, 8192), 64) if context.gpus else ((4,), (64,), 16)
    longest = max(prompts) + tokens
    with context.engine(
        _model(context, "0.6B"), _dtype(context), max_num_seqs=max(numbers), max_model_len=longest
    ) as (
        url,
        token,
    ):
        for length in prompts:
            for number in numbers:
                rate = asyncio.run(_generate(url, token, number, length, tokens))
                yield Figure(f"{number} sequences after {length}", rate, "tokens/s")


@phase(40)
def cached_turns(context: Context) -> Iterator[Figure]:
    """Turns a second of conversations whose context is in the prefix cache, by block size and hash."""
    length, turns = (32768, 12) if context.gpus else (256, 3)
    forms = {
        "16": ["--block-size", "16"],
        "64, xxhash": ["--block-size", "64", "--prefix-caching-hash-algo", "xxhash"],
    }
    for name, words in forms.items() if context.gpus else [("as it is", [])]:
        engine = {"max_model_len": length + 400 * turns, "max_num_seqs": 8, "extra_args": words}
        with context.engine(_model(context, "0.6B"), _dtype(context), **engine) as (url, token):
            rate = asyncio.run(_talk(url, token, length, turns))
            yield Figure(f"turns after {length} tokens, blocks {name}", rate, "1/s")


@phase(30)
def kept_cache(context: Context) -> Iterator[Figure]:
    """A run whose engines keep what the version before computed, beside one that computes it again."""
    for kept in ("true", "false"):
        words = (
            "train.schedule=partial",
            "train.num_steps=3",
            "eval.tasks=0",
            "sft.episodes=32",
            "sft.steps=5",
        )
        run = context.train(
            f"short-kept-{kept}", *words, f"engine.keep_kv={kept}", "buffer.drop_no_signal=false"
        )
        pauses = [value for step in metrics(run) for key, value in step.items() if key.endswith("pause_s")]
        yield Figure(f"keep_kv={kept}: pause", max(pauses, default=0.0), "s")


@phase(60)
def predicted_memory(context: Context) -> Iterator[Figure]:
    """Predicted peaks over measured ones, of a whole model and of an adapter."""
    from asyncrl.config import load_config
    from asyncrl.extensions.planning.predict import trainer_memory
    from asyncrl.extensions.planning.training import measure_step
    from testing.step_memory import measured_step

    for name, more in (("1.7B", ()), ("4B", ("lora.rank=16",))) if context.gpus else (("0.6B", ()),):
        config = load_config("gridworld_grpo", _words(context, 4096 if context.gpus else 128, *more))
        shape = _shape(context, name) | {"model_type": "qwen3", "max_position_embeddings": 65536}
        predicted = trainer_memory(config, measure_step(config, {"policy": shape}))
        measured = measured_step(config, str(_model(context, name)), shape["vocab_size"])
        for moment, size in measured.items():
            sums = sum(item.bytes for item in predicted[moment])
            yield Figure(f"{name} {' '.join(more)}: {moment}", sums / size)


@phase(20)
def one_rank(context: Context) -> Iterator[Figure]:
    """Collectives with one rank, and what the check of the version before takes under ZeRO-3."""
    import torch

    from asyncrl.config import load_config
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.models.loading import load_policy
    from asyncrl.train.models.lora import published

    config = load_config("gridworld_grpo", _words(context, 128, "train.zero_stage=3"))
    engine = TrainEngine(
        load_policy(str(_model(context, "0.6B")), config.model.dtype), config.train, config.model.dtype
    )
    tensor = torch.ones(2**20, device=engine.device)
    yield Figure("all-reduce of one rank", _seconds(lambda: torch.distributed.all_reduce(tensor)) * 1e3, "ms")
    weights = dict(engine.weights())
    assert set(weights) == {name for name, _ in published(engine.engine.module.model)}

    def exchange() -> None:
        with engine.other_weights(weights):
            pass

    yield Figure("weights exchanged and put back", _seconds(exchange, 1), "s")


@phase(120)
def never_run(context: Context) -> Iterator[Figure]:
    """Parts of the whole acceptance run that have never run on a GPU, all at once: whether they pass, not how fast."""
    names = LAST if context.gpus else ("resume",)
    with ThreadPoolExecutor(len(names)) as pool:
        for name, passed in zip(names, pool.map(lambda name: _passes(context, name), names), strict=True):
            yield Figure(name, float(passed), "passed")


def _passes(context: Context, name: str) -> bool:
    folder = context.folder / f"at-once-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        PARTS[name](Context(folder))
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
        return False
    return True


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _dtype(context: Context) -> str:
    return "bfloat16" if context.gpus else "float32"


def _shape(context: Context, name: str) -> dict[str, Any]:
    return context.shape | (QWEN3[name] if context.gpus else {})


def _model(context: Context, name: str) -> Path:
    return context.model(**_shape(context, name))


def _words(context: Context, tokens: int, *more: str) -> list[str]:
    return [
        f"engine.max_model_len={tokens}", f"train.micro_batch_tokens={tokens}", f"model.dtype={_dtype(context)}",
        "train.gradient_checkpointing=true", "train.zero_stage=1", *more,
    ]  # fmt: skip


def _step(
    context: Context, name: str, tokens: int, change: Callable[[Any], Any] = lambda model: None
) -> tuple[Callable[[], Any], int]:
    """Return what takes one step of one row of so many tokens, and the number of rows. change: applied to the model."""
    from asyncrl.algo.objective import build_objective
    from asyncrl.config import load_config
    from asyncrl.extensions.planning.training import longest_rows
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained
    from asyncrl.train.step.gradient import Step, accumulate, apply
    from asyncrl.train.step.ragged import Ragged
    from asyncrl.train.step.step_settings import StepSettings

    config = load_config("gridworld_grpo", _words(context, tokens, *TRAINED[name]))
    objective, model = build_objective(config.algo), str(_model(context, name))
    engine = TrainEngine(load_trained(config, objective, model), config.train, config.model.dtype)
    change(engine.engine.module.model)
    auxiliary = load_auxiliary_models(config, objective, engine, model)
    batch, settings = longest_rows(config, context.shape["vocab_size"]), StepSettings.of(config)
    tensors = auxiliary.step_tensors(engine, batch, settings, 1)
    tensors.tensors["advantages"] = Ragged.full(batch.counts)
    step = Step(engine, objective, auxiliary, batch, tensors, settings, 1e-6, 0.0, lambda found: None)
    rows = list(range(len(batch.trajectories)))
    return lambda: (accumulate(step, rows), apply(step)), len(rows)


def _seconds(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
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


async def _generate(url: str, token: str, number: int, length: int, tokens: int) -> float:
    """Return the tokens a second of so many requests at once, whose prompts are computed before."""
    from asyncrl.generation import GenerateRequest
    from asyncrl.services.engine.client import EngineClient

    client, rng = EngineClient(url, token), np.random.default_rng(length)
    prompts = [rng.integers(5, 400, length).astype(np.int32) for _ in range(number)]

    async def all_of_them(count: int, name: str) -> int:
        requests = [GenerateRequest(f"{name}-{n}", prompt, count) for n, prompt in enumerate(prompts)]
        return sum(len(answer.token_ids) for answer in await asyncio.gather(*map(client.generate, requests)))

    try:
        await all_of_them(1, f"first-{number}")
        start = time.perf_counter()
        return await all_of_them(tokens, f"then-{number}") / (time.perf_counter() - start)
    finally:
        await client.close()


async def _talk(url: str, token: str, length: int, turns: int) -> float:
    """Return the turns a second of four conversations."""
    from asyncrl.generation import GenerateRequest
    from asyncrl.services.engine.client import EngineClient

    client, rng = EngineClient(url, token), np.random.default_rng(0)

    async def one(number: int) -> None:
        context = rng.integers(5, 400, length).astype(np.int32)
        for turn in range(turns):
            request = GenerateRequest(f"{number}-{turn}", context, 16, session=str(number))
            answer = await client.generate(request)
            context = np.concatenate([context, answer.token_ids, rng.integers(5, 400, 200).astype(np.int32)])

    try:
        start = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(4)))
        return 4 * turns / (time.perf_counter() - start)
    finally:
        await client.close()
