"""The parts of the acceptance run. Each returns its figures, raises `NotRun`, or fails by raising anything else."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from acceptance.context import SMALL, WORDS, Context, metrics, summary
from acceptance.measure import Found, tried
from bench.report import Figure

from asyncrl.config import load_config
from asyncrl.conflicts.weight_transfer import weight_transfers
from asyncrl.gpus import INTERPRETER

Part = TypeVar("Part", bound=Callable[[Context], Iterable[Found]])
PARTS: dict[str, Callable[[Context], Iterable[Found]]] = {}
"""By name, in the order in which they run: the cheapest first."""
REQUIREMENTS = Path(__file__).parents[2] / "requirements"
MODULES = (
    "torch",
    "vllm",
    "deepspeed",
    "transformers",
    "peft",
    "safetensors",
    "pyarrow",
    "fastapi",
    "aiohttp",
)
GIB = 2**30
TINY = (
    "sft.episodes=200", "sft.steps=20", "rollout.group_size=4", "buffer.groups_per_step=4", "eval.tasks=0",
    "train.num_steps=3", "train.checkpoint_every=0", "buffer.drop_no_signal=false",
)  # fmt: skip
"""A run of a few steps."""
WIDE = {
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 8,
}  # fmt: skip
GPU_RUNS = {
    "fused": ("model.dtype=bfloat16", "train.fused_logprobs=true"),
    "fp8": ("model.dtype=bfloat16", "engine.quantization=fp8"),
    "batch-invariant": ("engine.batch_invariant=true",),
    "kept-kv": ("engine.keep_kv=true", "train.schedule=partial"),
    "kv-offload": ("engine.kv_offload_gib=1",),
    "lora": ("lora.rank=8",),
    "commitments": ("train.commitments=true",),
    "ngram": ("engine.speculative.method=ngram",),
    "critic": ("algo.preset=ppo",),
    "offload": ("train.offload=optimizer", "train.zero_stage=3"),
}  # fmt: skip
MOST_LOGP_ERROR = {"float32": 2e-3, "bfloat16": 0.05}
"""Mean absolute difference in nats of engine and trainer."""
MOST_PACKED_ERROR = 5e-3
"""In float32, of which a GPU's matrix products may keep ten bits."""
MOST_FUSED_ERROR = 1e-5
"""Of log-probabilities and gradients, relative, in float32: both ways use the same matrix products."""
MOST_FUSED_ERROR_BFLOAT16 = 0.01


def part(function: Part) -> Part:
    """Register a part under its function's name."""
    PARTS[function.__name__] = function
    return function


@part
def imports(context: Context) -> list[Figure]:
    """Every package of the lock is installed in its version, and those that matter can be imported."""
    lock = (REQUIREMENTS / ("gpu.lock" if context.gpus else "cpu.lock")).read_text()
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", lock, re.MULTILINE))
    wrong = []
    for name, version in pins.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if found.partition("+")[0] != version.partition("+")[0]:
            wrong.append(f"{name} is {found}, not {version}")
    if wrong:
        raise AssertionError("; ".join(wrong))
    for module in MODULES:
        importlib.import_module(module)
    return [Figure("packages", len(pins)), Figure("imported", len(MODULES))]


@part
def memory(context: Context) -> list[Figure]:
    """A real step of the trainer takes what was predicted, within 10 %."""
    from asyncrl.extensions.planning.predict import trainer_memory
    from asyncrl.extensions.planning.training import measure_step
    from testing.step_memory import measured_step

    tokens = 4096 if context.gpus else 256
    dtype = "bfloat16" if context.gpus else "float32"
    words = [
        f"engine.max_model_len={tokens}", f"train.micro_batch_tokens={2 * tokens}", f"model.dtype={dtype}",
        "train.gradient_checkpointing=true", "train.zero_stage=2",
    ]  # fmt: skip
    config = load_config("gridworld_grpo", words)
    shape = context.shape | {"model_type": "qwen3", "max_position_embeddings": 4096}
    predicted = trainer_memory(config, measure_step(config, {"policy": shape}))
    measured = max(measured_step(config, str(context.model()), shape["vocab_size"]).values())
    sums = max(
        sum(item.bytes for item in predicted[name]) for name in ("forward and backward", "optimizer step")
    )
    figures = [
        Figure("predicted", sums / GIB, "GiB"), Figure("measured", measured / GIB, "GiB"),
        Figure("ratio", sums / measured),
    ]  # fmt: skip
    _check(abs(sums / measured - 1) <= 0.1, "prediction and measurement differ by more than 10 %", figures)
    return figures


@part
def packed_rows(context: Context) -> list[Figure]:
    """Rows packed without padding have the log-probabilities and gradients of rows by themselves, in both forms of
    attention; the time of FlexAttention beside that of gathered rows."""
    import torch

    from asyncrl.train.models.loading import load_policy
    from asyncrl.train.models.prefix_tree import FLEX, INNER, NAME, enable_prefix_trees

    device, longest = ("cuda", 768) if context.gpus else ("cpu", 96)
    rng = np.random.default_rng(0)
    ids = torch.zeros(12, longest, dtype=torch.long, device=device)
    mask = torch.zeros(12, longest, dtype=torch.bool, device=device)
    for row in range(12):
        # Three groups, each with a prompt of its own.
        like, length = (
            np.random.default_rng(row // 4).integers(5, WORDS, longest),
            rng.integers(longest // 3, longest),
        )
        like[longest // 4 :] = rng.integers(5, WORDS, longest - longest // 4)
        ids[row, :length] = torch.from_numpy(like[:length])
        mask[row, longest // 4 : length] = True
    factors = torch.linspace(-1, 1, longest, device=device)
    found, seconds = {}, {}
    # FlexAttention has no backward pass on a CPU.
    for form in (INNER, NAME, *((FLEX,) if context.gpus else ())):
        policy = load_policy(str(context.model()), "float32").to(device)
        policy.model.set_attn_implementation(INNER)
        if form != INNER and not enable_prefix_trees(policy.model, form):
            raise AssertionError("the model does not compute packed rows as rows by themselves")

        def step(policy: Any = policy) -> Any:
            policy.zero_grad()
            logp = policy(ids, mask, 1.0)["logp"]
            (logp * factors).sum().backward()
            return logp.detach().cpu()

        seconds[form] = _shortest(step, 3)
        logp = step()
        gradient = torch.cat([p.grad.flatten().cpu() for p in policy.parameters() if p.grad is not None])
        found[form] = logp, gradient
    plain_logp, plain_gradient = found.pop(INNER)
    figures = [Figure("tokens", int(mask.sum()))]
    for form, (logp, gradient) in found.items():
        name = "FlexAttention" if form == FLEX else "gathered rows"
        apart = [
            Figure(f"{name}: largest difference", float((logp - plain_logp).abs().max()), "nats"),
            Figure(
                f"{name}: gradient",
                float((gradient - plain_gradient).norm() / plain_gradient.norm()),
                "relative",
            ),
        ]
        figures += [*apart, Figure(f"{name}: time", seconds[form] / seconds[INNER], "of plain rows'")]
        _check(apart[0].value <= MOST_PACKED_ERROR, "packed rows have other log-probabilities", figures)
        _check(apart[1].value <= MOST_PACKED_ERROR, "packed rows have another gradient", figures)
    return figures


@part
def fused_logprobs(context: Context) -> list[Figure]:
    """liger-kernel's fused log-probabilities and gradients are the plain ones; its time and memory beside theirs."""
    if not context.gpus:
        os.environ[INTERPRETER] = "1"
    import torch

    from asyncrl.train.models.fused_logprobs import fused_logp
    from asyncrl.train.models.token_scores import Head, score_tokens

    device, tokens = ("cuda", 8192) if context.gpus else ("cpu", 32)
    hidden, vocabulary = context.shape["hidden_size"], context.shape["vocab_size"]
    figures = []
    for dtype, most in ((torch.float32, MOST_FUSED_ERROR), (torch.bfloat16, MOST_FUSED_ERROR_BFLOAT16)):
        torch.manual_seed(0)
        module = torch.nn.Linear(hidden, vocabulary, bias=False, device=device, dtype=dtype)
        head, parameters = Head(module, SimpleNamespace()), list(module.parameters())
        states = torch.randn(tokens, hidden, device=device, dtype=dtype)
        labels = torch.randint(0, vocabulary, (tokens,), device=device)
        above = torch.linspace(-1, 1, tokens, device=device)
        ways = {
            "plain": partial(score_tokens, labels, vocabulary, 1.0, (), None),
            "fused": partial(fused_logp, head, labels),
        }
        found, seconds, peaks = {}, {}, {}
        for name, way in ways.items():
            # The first pass compiles.
            for _ in range(2):
                if context.gpus:
                    torch.cuda.reset_peak_memory_stats()
                own, begun = states.clone().requires_grad_(), time.perf_counter()
                logp = way(head.logits, parameters, own)["logp"]
                gradients = torch.autograd.grad((logp * above).sum(), [own, *parameters])
                if context.gpus:
                    torch.cuda.synchronize()
                seconds[name] = time.perf_counter() - begun
            found[name] = [logp.detach().cpu(), *(g.float().cpu() for g in gradients)]
            peaks[name] = torch.cuda.max_memory_allocated() if context.gpus else 0
        apart = [
            float((one - other).norm() / one.norm())
            for one, other in zip(found["plain"], found["fused"], strict=True)
        ]
        kind = str(dtype).removeprefix("torch.")
        figures.append(Figure(f"{kind}: difference", max(apart), "relative"))
        if context.gpus:
            figures.append(Figure(f"{kind}: time", seconds["fused"] / seconds["plain"], "of the plain way's"))
            figures.append(Figure(f"{kind}: memory", peaks["fused"] / peaks["plain"], "of the plain way's"))
        _check(max(apart) <= most, f"the fused kernel computes something else in {kind}", figures)
    return figures


@part
def presets(context: Context) -> list[Figure]:
    """Every `algo.preset` takes a step, with its critic, reference, teacher and earlier policies."""
    from asyncrl.algo.presets import known_presets

    failed = []
    for preset in sorted(known_presets()):
        try:
            problem = take_step(context, preset)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            failed.append(f"{preset}: {problem}")
    figures = [Figure("presets", len(known_presets()))]
    _check(not failed, "; ".join(failed), figures)
    return figures


def take_step(context: Context, preset: str) -> str:
    """Have a small model take a step of a preset; return what was wrong with it, "" if nothing was."""
    import math

    from acceptance.groups import groups

    from asyncrl.algo.objective import build_objective
    from asyncrl.config import parse_config
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained
    from asyncrl.train.step.controls import make_controls
    from asyncrl.train.step.step import train_step
    from asyncrl.train.step.step_batch import build_step_batch
    from asyncrl.train.step.step_settings import StepSettings

    model = str(context.model(**SMALL | {"vocab_size": WORDS}))
    batch = build_step_batch(groups(WORDS), 0, 0)
    config = parse_config(
        {
            "model": {"path": model}, "env": {"name": "gridworld"}, "algo": {"preset": preset},
            "teacher": {"path": "self" if preset == "sdpo" else model}, "train": {"zero_stage": 1},
        }
    )  # fmt: skip
    objective = build_objective(config.algo)
    engine = TrainEngine(load_trained(config, objective, model), config.train, "float32")
    auxiliary = load_auxiliary_models(config, objective, engine, model)
    auxiliary.before_run(engine, 0)
    settings, controls = StepSettings.of(config), make_controls(config, objective)
    report = train_step(engine, objective, auxiliary, batch, settings, 1e-4, controls)
    auxiliary.after_step(engine, 1, report.metrics)
    good = not report.skipped and math.isfinite(report.metrics["grad_norm"])
    return "" if good else report.skipped or str(report.metrics)


@part
def trainer_throughput(context: Context) -> list[Figure]:
    """Trained tokens a second, and what share of a matrix product's rate that is (model-FLOP utilisation)."""
    import torch

    from asyncrl.algo.objective import build_objective
    from asyncrl.extensions.planning.training import longest_rows
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained
    from asyncrl.train.step.gradient import Step, accumulate, apply
    from asyncrl.train.step.ragged import Ragged
    from asyncrl.train.step.step_settings import StepSettings

    tokens = 4096 if context.gpus else 256
    dtype = "bfloat16" if context.gpus else "float32"
    words = [
        f"engine.max_model_len={tokens}", f"train.micro_batch_tokens={4 * tokens}", f"model.dtype={dtype}",
        f"train.gradient_checkpointing={'true' if context.gpus else 'false'}", "train.zero_stage=1",
    ]  # fmt: skip
    config = load_config("gridworld_grpo", words)
    objective = build_objective(config.algo)
    engine = TrainEngine(load_trained(config, objective, str(context.model())), config.train, dtype)
    auxiliary = load_auxiliary_models(config, objective, engine, str(context.model()))
    batch = longest_rows(config, context.shape["vocab_size"])
    settings = StepSettings.of(config)
    tensors = auxiliary.step_tensors(engine, batch, settings, 1)
    tensors.tensors["advantages"] = Ragged.full(batch.counts)
    step = Step(engine, objective, auxiliary, batch, tensors, settings, 1e-6, 0.0, lambda found: None)
    rows = list(range(len(batch.trajectories)))
    seconds = _shortest(lambda: (accumulate(step, rows), apply(step)), 3)
    rate = len(rows) * tokens / seconds
    shape = context.shape
    parameters = sum(p.numel() for p in engine.engine.module.parameters())
    attention = 6 * shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"] * tokens
    flops = rate * (6 * parameters + attention)
    peak = _matmul_flops(8192 if context.gpus else 1024, getattr(torch, dtype), engine.device)
    return [
        Figure("trained", rate, "tokens/s"), Figure("model", flops / 1e12, "TFLOP/s"),
        Figure("matrix product", peak / 1e12, "TFLOP/s"), Figure("utilisation", flops / peak),
    ]  # fmt: skip


def _logprob_agreement(context: Context, dtype: str) -> list[Figure]:
    """Have an engine sample, and score the same tokens in the trainer's model."""
    import torch

    from asyncrl.generation import GenerateRequest
    from asyncrl.services.engine.client import EngineClient
    from asyncrl.train.models.loading import load_frozen

    model = context.model()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, WORDS, 40).astype(np.int32) for _ in range(16)]

    async def sample(url: str, token: str) -> list[Any]:
        client = EngineClient(url, token)
        try:
            requests = [GenerateRequest(f"r{i}", prompt, 64, seed=i) for i, prompt in enumerate(prompts)]
            return await asyncio.gather(*(client.generate(request) for request in requests))
        finally:
            await client.close()

    with context.engine(model, dtype) as (url, token):
        answers = asyncio.run(sample(url, token))
    device = "cuda" if context.gpus else "cpu"
    policy = load_frozen(str(model), dtype).to(device)
    errors = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor(np.concatenate([prompt, answer.token_ids]), device=device)[None].long()
        mask = torch.arange(ids.shape[1], device=device)[None] >= len(prompt)
        with torch.no_grad():
            logp = policy(ids, mask, 1.0)["logp"][mask].float().cpu().numpy()
        errors.append(np.abs(logp - answer.logprobs))
    found = np.concatenate(errors)
    figures = [
        Figure("tokens", len(found)), Figure("mean difference", float(found.mean()), "nats"),
        Figure("largest difference", float(found.max()), "nats"),
    ]  # fmt: skip
    _check(
        found.mean() <= MOST_LOGP_ERROR[dtype], f"more than {MOST_LOGP_ERROR[dtype]} nats on average", figures
    )
    return figures


@part
def logprobs_float32(context: Context) -> list[Figure]:
    """Engine and trainer agree on the log-probabilities of sampled tokens in float32."""
    return _logprob_agreement(context, "float32")


@part
def logprobs_bfloat16(context: Context) -> list[Figure]:
    """The same in bfloat16."""
    return _logprob_agreement(context, "bfloat16")


@part
def engine_throughput(context: Context) -> list[Figure]:
    """Sampled tokens a second through vLLM's own route and through ours, on one engine."""
    from acceptance.rates import our_rate, vllm_rate

    count, tokens = (128, 256) if context.gpus else (16, 32)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, WORDS, 64).astype(np.int32) for _ in range(count)]
    dtype = "bfloat16" if context.gpus else "float32"
    with context.engine(context.model(), dtype, max_num_seqs=count) as served:
        both = [(vllm_rate(*served, prompts, tokens), our_rate(*served, prompts, tokens)) for _ in range(4)]
    # The first ones compile.
    theirs, own = (sorted(column)[1] for column in zip(*both[1:], strict=True))
    return [
        Figure("vLLM's route", theirs, "tokens/s"), Figure("our route", own, "tokens/s"),
        Figure("ours over vLLM's", own / theirs),
    ]  # fmt: skip


@part
def transports(context: Context) -> list[Figure]:
    """Each way of weights in a run whose engines check every file's checksum; its rate beside a copy on the device."""
    import torch

    # Large enough on a CPU, too, that a version takes longer than the calls around it.
    model = context.model(vocab_size=WORDS, **({} if context.gpus else WIDE))
    figures = []
    for kind in weight_transfers():
        if kind == "nixl" and importlib.util.find_spec("nixl") is None:
            continue
        run = context.train(
            f"transport-{kind}-{time.time_ns()}", *TINY, f"model.path={model}", f"engine.weight_transfer={kind}",
        )  # fmt: skip
        steps = metrics(run)[1:]
        seconds = min(step["weights/publish_s"] for step in steps)
        figures += [
            Figure(f"{kind}: publish", steps[-1]["weights/bytes"] / seconds / 1e9, "GB/s"),
            Figure(f"{kind}: version", steps[-1]["weights/bytes"] / 1e6, "MB"),
            Figure(f"{kind}: pause", 1000 * min(step["time/pause_s"] for step in steps), "ms"),
        ]
    source = torch.ones(256 * 2**20 // 4, device="cuda" if context.gpus else "cpu")
    target = torch.empty_like(source)
    seconds = _shortest(lambda: target.copy_(source), 5)
    return [*figures, Figure("copy on the device", source.nbytes / seconds / 1e9, "GB/s")]


@part
def sleep_wake(context: Context) -> list[Figure]:
    """A run in which engine and trainer use the memory by turns."""
    run = context.train(
        f"sleep-{time.time_ns()}", *TINY, "train.schedule=synchronous", "placement.sleep=true"
    )
    return _steps(run, 3)


@part
def resume(context: Context) -> list[Figure]:
    """A run of two steps is continued to four."""
    run = context.train(f"resume-{time.time_ns()}", *TINY, "train.num_steps=2")
    context.resume(run, "train.num_steps=4")
    return _steps(run, 4)


@part
def placement_shared(context: Context) -> list[Figure]:
    """Engine and trainer on one GPU."""
    context.need_gpus(1)
    run = context.train(f"shared-{time.time_ns()}", *TINY, "placement.trainer=[0]", "placement.engines=[0]")
    return _steps(run, 3)


@part
def placement_split(context: Context) -> list[Figure]:
    """Engine and trainer on a GPU each, with weights over a collective group."""
    context.need_gpus(2)
    run = context.train(
        f"split-{time.time_ns()}", *TINY, "placement.trainer=[0]", "placement.engines=[1]",
        "engine.weight_transfer=collective",
    )  # fmt: skip
    return _steps(run, 3)


@part
def features(context: Context) -> Iterator[Found]:
    """Runs of three steps with what only GPUs have, or have in a form of their own."""
    context.need_gpus(1)
    for name in GPU_RUNS:
        yield from tried(name, partial(feature, context, name))


def feature(context: Context, name: str) -> Iterator[Found]:
    """Yield the seconds of training of one of `GPU_RUNS`."""
    run = context.train(f"{name}-{time.time_ns()}", *TINY, *GPU_RUNS[name])
    yield Figure(f"{name}: training", summary(run)["train_wall_s"], "s")


@part
def demo(context: Context) -> list[Figure]:
    """The demo learns its task."""
    run = context.train(f"demo-{time.time_ns()}")
    found = summary(run)
    after, before = found["eval_after"]["mean"], found["eval_before"]["mean"]
    figures = [
        Figure("reward before", before), Figure("reward after", after),
        Figure("training", found["train_wall_s"], "s"),
    ]  # fmt: skip
    _check(after >= 0.9, "the reward after training is below 0.9", figures)
    return figures


def _steps(run: Path, count: int) -> list[Figure]:
    found = summary(run)
    figures = [Figure("steps", found["steps"]), Figure("training", found["train_wall_s"], "s")]
    _check(found["steps"] == count, f"{found['steps']} steps instead of {count}", figures)
    return figures


def _check(good: bool, problem: str, figures: list[Figure]) -> None:
    if not good:
        text = ", ".join(f"{one.name} {one.value:.4g} {one.unit}".rstrip() for one in figures)
        raise AssertionError(f"{problem} ({text})")


def _shortest(work: Callable[[], Any], repeats: int) -> float:
    """Return the seconds of the fastest repeat, after one that does not count."""
    import torch

    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _matmul_flops(size: int, dtype: Any, device: Any) -> float:
    import torch

    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / _shortest(lambda: left @ right, 5)
