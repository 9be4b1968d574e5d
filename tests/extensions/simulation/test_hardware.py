"""What GPUs take, worked out from their data sheets."""

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.clock import now_s
from asyncrl.config import apply_override, load_config, parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.planning.architectures import architecture
from asyncrl.extensions.planning.model_size import model_size
from asyncrl.extensions.simulation.engine import SimulatedEngine
from asyncrl.extensions.simulation.hardware import GPUS, gpu_costs, gpu_named, operations
from asyncrl.extensions.simulation.virtual_loop import run_virtually
from asyncrl.generation import GenerateRequest
from tests.extensions.planning.recipes import SMALL

PUBLISHED = [
    # silybench-data, derived/csv/capacity.csv, run 20260924T125045Z: vLLM 0.30.0, bfloat16.
    ("Qwen/Qwen3-8B", 512, 128, 128, 14540),
    ("Qwen/Qwen3-8B", 80, 1024, 128, 3018),
    ("Qwen/Qwen3-8B", 396, 128, 1024, 13322),
    ("Qwen/Qwen3-8B", 40, 2048, 2048, 2815),
    ("Qwen/Qwen3-8B", 7, 8192, 512, 502),
]
"""Published rates of an engine on one H100: model, sequences, tokens of a prompt and of an answer, tokens a second."""
PUBLISHED_WITH_TOP_P = [
    # ml-energy/leaderboard, public/data/models/Qwen__Qwen3-*__gpqa.json: vLLM, bfloat16, answers of about 8,000 tokens.
    ("Qwen/Qwen3-8B", 8, 300, 7854, 818),
    ("Qwen/Qwen3-8B", 16, 300, 7861, 1345),
    ("Qwen/Qwen3-8B", 32, 300, 8170, 1917),
    ("Qwen/Qwen3-8B", 64, 300, 8367, 2510),
    ("Qwen/Qwen3-30B-A3B", 8, 300, 8162, 648),
    ("Qwen/Qwen3-30B-A3B", 16, 300, 8243, 955),
    # The same, Qwen__Qwen3-14B__lm-arena-chat.json.
    ("Qwen/Qwen3-14B", 8, 300, 620, 627),
    ("Qwen/Qwen3-14B", 16, 300, 620, 1168),
    ("Qwen/Qwen3-14B", 32, 300, 620, 2023),
    ("Qwen/Qwen3-14B", 64, 300, 620, 3140),
    ("Qwen/Qwen3-14B", 128, 300, 620, 4474),
    ("Qwen/Qwen3-14B", 256, 300, 620, 5760),
]
"""The same of a benchmark whose requests ask for `top_p=0.95`, for which that vLLM sorts the vocabulary."""
TOP_P_S = 50e-6
"""The time of that for each sequence and token, chosen with the rates of 14B in sight. Training samples from the whole
distribution, so the product has no such constant."""
TOKEN_MS_OF_A_4090 = {192: 10.5, 640: 10.4, 1088: 10.3, 2112: 10.8, 3136: 10.8, 4160: 10.9}
"""By the context in the middle of an answer, the mean time of a token of one sequence: Qwen3-4B, vLLM, RTX 4090, as
tenstorrent/tt-inference-server, issue 394, has it of 2025-11-12. No constant was chosen with them in sight."""
SPREAD = 0.54
"""Of the logarithm of these answers' lengths: by the histograms beside the rates they deviate by 0.58 of their mean."""


def recipe(*changes):
    data = load_config(SMALL, ["model.dtype=bfloat16"]).model_dump(mode="json")
    for change in changes:
        apply_override(data, change)
    return parse_config(data, "test", strict=False)


@pytest.mark.parametrize(
    ("model", "parameters", "active"),
    [
        ("Qwen/Qwen3-0.6B", 0.596e9, 0.596e9),
        ("Qwen/Qwen3-8B", 8.19e9, 7.57e9),
        ("Qwen/Qwen3-30B-A3B", 30.5e9, 3.03e9),
    ],
)
def test_parameters_are_counted_as_their_makers_do(model, parameters, active):
    config = recipe(f"model.path={model}")
    size = model_size(architecture(config, "model.path", model))
    assert size.parameters == pytest.approx(parameters, rel=0.005)
    assert size.active == pytest.approx(active, rel=0.01)


def test_an_iteration_reads_the_weights_once_and_multiplies_meanwhile():
    costs = gpu_costs(recipe("train.max_logp_error=0"), GPUS["h100"], 1, 1, by_turns=False)
    weights = 596_000_000 * 2
    read_s, product_s = weights / (3.35e12 * 0.85), 2 * 596e6 / (989e12 * 0.6)
    assert costs.engine.weights_s == pytest.approx(read_s, rel=0.01)
    assert costs.engine.prefill_token_s == costs.engine.product_s == pytest.approx(product_s, rel=0.01)
    fixed = costs.engine.iteration_s
    assert costs.engine.iteration(1, 0) == pytest.approx(fixed + read_s, rel=0.01)
    many = 2 * int(read_s / product_s)
    assert costs.engine.iteration(many, 0) == pytest.approx(fixed + many * (product_s + 3e-6), rel=0.01)
    passes = 6 + 2 * recipe().train.gradient_checkpointing
    assert costs.trainer.token_s == pytest.approx(passes * 596e6 / (989e12 * 0.35), rel=0.01)
    assert costs.trainer.publish_s == pytest.approx(weights / 0.6e9, rel=0.01)


def test_few_sequences_read_few_experts():
    costs = gpu_costs(
        recipe("model.path=Qwen/Qwen3-30B-A3B", "train.zero_stage=3"), GPUS["h200"], 8, 1, False
    ).engine
    whole = costs.weights_s
    one, many = (costs.iteration(number, 0) - costs.iteration_s - number * 3e-6 for number in (1, 1000))
    # 8 of 128 experts of each layer, and what is not an expert's.
    assert one == pytest.approx(whole - costs.experts_s * 120 / 128)
    assert many == pytest.approx(max(whole, 1000 * costs.product_s), rel=1e-3)


def rate(model, sequences, prompt, answer, sequence_s=0.0):
    """The tokens a second that one simulated engine samples for so many users, each of whom asks again at once."""
    config = recipe(
        f"model.path={model}", f"engine.max_num_seqs={sequences}", f"engine.max_model_len={2 * answer + prompt}",
        "train.zero_stage=3",
    )  # fmt: skip
    costs = gpu_costs(config, GPUS["h100"], 32, 1, by_turns=False).engine
    costs = replace(costs, sequence_s=costs.sequence_s + sequence_s)
    # Those of real questions vary as much as their published histogram says, the others are of one length.
    spread = SPREAD if answer > 4096 else 0.0
    rng = np.random.default_rng(0)

    async def user(engine, number, answered):
        for turn in itertools.count():
            share = rng.random() if turn == 0 else rng.lognormal(-(spread**2) / 2, spread)
            ids = np.full(prompt, number * 1000 + turn, np.int32)
            name = f"{number}-{turn}"
            tokens = max(1, int(answer * share))
            await engine.generate(GenerateRequest(name, ids, max_tokens=tokens, order=0, session=name))
            answered.release()

    async def sampled(engine, answered, number):
        for _ in range(number):
            await answered.acquire()
        engine.settle_times()
        return engine.times.tokens + sum(
            engine._iterations - one.started for _, _, one in engine._running
        ), now_s()

    async def serve():
        engine, answered = SimulatedEngine("http://engine", costs), asyncio.Semaphore(0)
        users = [asyncio.create_task(user(engine, number, answered)) for number in range(sequences)]
        before, began = await sampled(engine, answered, 2 * sequences)
        after, ended = await sampled(engine, answered, 3 * sequences)
        for one in users:
            one.cancel()
        await asyncio.gather(*users, return_exceptions=True)
        return (after - before) / (ended - began)

    return run_virtually(serve())


@pytest.mark.parametrize(("context", "published_ms"), TOKEN_MS_OF_A_4090.items())
def test_a_token_of_one_sequence_takes_what_was_published_of_a_smaller_gpu(context, published_ms):
    config = recipe("model.path=Qwen/Qwen3-4B", f"engine.max_model_len={context}", "train.zero_stage=3")
    engine = gpu_costs(config, GPUS["rtx4090"], 64, 1, by_turns=False).engine
    assert 1000 * engine.iteration(1, context) == pytest.approx(published_ms, rel=0.05)


@pytest.mark.parametrize(("model", "sequences", "prompt", "answer", "published"), PUBLISHED)
def test_an_engine_comes_within_a_fifth_of_published_rates(model, sequences, prompt, answer, published):
    assert rate(model, sequences, prompt, answer) == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(("model", "sequences", "prompt", "answer", "published"), PUBLISHED_WITH_TOP_P)
def test_so_does_one_that_sorts_the_vocabulary_for_each_token(model, sequences, prompt, answer, published):
    assert rate(model, sequences, prompt, answer, TOP_P_S) == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # The pass that compares log-probabilities reads one row of each group of eight.
        ([], 6 + 2 / 8),
        (["train.max_logp_error=0"], 6),
        (["train.gradient_checkpointing=true"], 8 + 2 / 8),
        # With one optimizer step a batch the proximal policy is the current one; with two it takes a pass.
        (["algo.preset=decoupled_ppo"], 6 + 2 / 8),
        (["algo.preset=decoupled_ppo", "train.num_minibatches=2"], 8 + 2 / 8),
        (["train.num_minibatches=2"], 8 + 2 / 8),
        (["algo.preset=ppo_ewma", "train.num_minibatches=2"], 8 + 2 / 8),
        (["algo.kl.coef=0.1"], 8 + 2 / 8),
        (["algo.kl.coef=0.1", "reference.path=http://127.0.0.1:1"], 6 + 2 / 8),
        (["algo.preset=opd", "teacher.path=some/model"], 8 + 2 / 8),
        (["algo.preset=opd", "teacher.path=http://127.0.0.1:1"], 6 + 2 / 8),
        # The policy's values need its pass before the step; the critic has one of its own and learns.
        (["algo.preset=ppo"], 16 + 2 / 8),
        (["algo.preset=ppo", "algo.value.trunk=shared"], 8 + 2 / 8),
        (["algo.preset=archer", "algo.value.steps=4"], 6 + 2 / 8 + 2 + 4 * (6 + 2)),
    ],
)
def test_a_trainer_pays_for_every_pass_of_its_objective(changes, expected):
    config = recipe("train.gradient_checkpointing=false", "rollout.group_size=8", *changes)
    assert operations(config) == pytest.approx(expected)


def test_more_gpus_train_faster_and_a_model_split_over_two_decodes_faster():
    one, two = (gpu_costs(recipe(), GPUS["h100"], ranks, 1, False) for ranks in (1, 2))
    split = gpu_costs(recipe(), GPUS["h100"], 1, 2, False)
    assert one.trainer.token_s == pytest.approx(2 * two.trainer.token_s)
    assert split.engine.weights_s < one.engine.weights_s
    assert split.engine.kv_tokens > one.engine.kv_tokens


@pytest.mark.parametrize(
    ("gpu", "ranks", "zero", "fits"),
    [("h100", 1, 3, False), ("h100", 4, 3, True), ("h100", 4, 1, True), ("a100-40", 4, 1, False)],
)
def test_what_cannot_fit_is_left_out(gpu, ranks, zero, fits):
    config = recipe("model.path=Qwen/Qwen3-8B", f"train.zero_stage={zero}")
    assert (gpu_costs(config, GPUS[gpu], ranks, 1, False) is not None) == fits


def test_an_unknown_gpu_is_refused():
    with pytest.raises(ConfigError, match=r"--device: must be one of a100-40, .*, got 'tpu'"):
        gpu_named("tpu")
