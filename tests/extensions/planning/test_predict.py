"""What a run takes on its GPUs, and what is said where it is too much."""

import json
from dataclasses import replace

import pytest

from asyncrl import cli
from asyncrl.config import load_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.other_optimizers.memory import moment_bytes
from asyncrl.extensions.planning.architectures import architecture, shipped
from asyncrl.extensions.planning.command import parse_size
from asyncrl.extensions.planning.engine_memory import engine_memory
from asyncrl.extensions.planning.load import load_for_gpus
from asyncrl.extensions.planning.machine import choose
from asyncrl.extensions.planning.predict import PASSES, Item, Planner, PolicyMemory, _remedies
from asyncrl.extensions.planning.states import Size, kept
from asyncrl.extensions.planning.step_memory import Activations, StepMemory
from asyncrl.extensions.planning.training import measure_step
from asyncrl.train.engine.deepspeed_engine import bucket_size
from tests.extensions.planning.recipes import BY_TURNS, SMALL

GIB = 2**30
PARAMETERS = {
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
}
"""As their model cards or files state."""


def test_every_shipped_shape_has_the_number_of_parameters_of_its_model():
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    found = {}
    for name, file in shipped().items():
        values = json.loads(file.read_text())
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
        model.tie_weights()
        found[name] = sum(parameter.numel() for parameter in model.parameters())
    assert found == PARAMETERS


def test_a_model_is_found_by_folder_or_by_name_and_an_unknown_one_is_refused(tmp_path):
    config = load_config(SMALL)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "hidden_size": 64}')
    assert architecture(config, "model.path", str(tmp_path))["hidden_size"] == 64
    for name in ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base", "qwen3-8b"):
        assert architecture(config, "model.path", name)["hidden_size"] == 4096
    with pytest.raises(
        ConfigError, match=r"model\.path: the shape of 'nobody/nothing' is not known.*Qwen3-0\.6B"
    ):
        architecture(config, "model.path", "nobody/nothing")


def test_states_are_divided_over_ranks_as_the_stage_says():
    size = Size(1000, 1000, 2000, 2000, 8000)

    def of(stage, ranks):
        zero = {"stage": stage, "reduce_bucket_size": 10}
        return kept(size, {"zero_optimization": zero, "bf16": {"enabled": True}}, ranks)

    assert [of(stage, 4).states for stage in (0, 1, 2)] == [14000, 2000 + 3000, 2000 + 3000]
    assert [of(stage, 4).gradients for stage in (1, 2)] == [2000, 500]
    # A quarter of the weights, and all of them gathered.
    assert (of(3, 4).weights, of(3, 4).gathered) == (500, 2000)
    assert (of(3, 1).weights, of(3, 1).gathered) == (2000, 0)


def test_small_parameters_stay_gathered():
    size = Size(1000, 1000, 2000, 2000, 8000, persistent=100)
    zero = {"zero_optimization": {"stage": 3, "reduce_bucket_size": 10}, "bf16": {"enabled": True}}
    found = kept(size, zero, 4)
    assert (found.weights, found.gathered) == (500 + 100, 1900)
    assert kept(size, zero, 1).weights == 2000


def test_what_a_step_leaves_behind_is_there_in_passes_without_gradient():
    size = Size(1000, 1000, 2000, 2000, 8000)
    sums = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}

    def between(stage):
        zero = {"stage": stage, "reduce_bucket_size": 10}
        return kept(size, {**sums, "zero_optimization": zero, "communication_data_type": "fp32"}, 4).between

    # Stage 1 has all gradients in float32, stage 3 a quarter of them and the bucket.
    assert [between(stage) for stage in (1, 2, 3)] == [4000, 0, 1000 + 40]


def test_what_is_offloaded_counts_in_host_memory():
    size = Size(1000, 1000, 2000, 2000, 8000)

    def of(*kinds):
        zero = {"stage": 3, "reduce_bucket_size": 10} | {f"offload_{kind}": {} for kind in kinds}
        found = kept(size, {"zero_optimization": zero, "bf16": {"enabled": True}}, 4)
        return [found.weights, found.master, found.moments, found.gradients, found.step, found.host]

    assert of() == [500, 1000, 2000, 1000, 2000, 0]
    # Master, moments and gradients.
    assert of("optimizer") == [500, 0, 0, 0, 0, 4000]
    assert of("optimizer", "param") == [0, 0, 0, 0, 0, 4500]


def test_what_is_offloaded_to_files_is_named_so(tiny_model):
    words = [f"model.path={tiny_model}", "rollout.hinted=0", "train.zero_stage=3", "train.offload=optimizer"]
    planner = Planner(80 * GIB, 1)
    memory, files = (
        planner.predict(load_for_gpus(SMALL, [*words, *more])).host
        for more in ([], ["train.offload_folder=nvme"])
    )
    assert (
        files["offloaded by train.offload in files of train.offload_folder, on all ranks"]
        == (memory["offloaded by train.offload, on all ranks"])
    )


def test_each_optimizer_keeps_what_its_definition_says():
    matrix, norm = ("model.layers.0.mlp.up_proj.weight", (64, 32)), ("model.norm.weight", (64,))
    found = {
        name: [moment_bytes(name, *one) for one in (matrix, norm)] for name in ("adamw", "muon", "adamw_8bit")
    }
    assert found == {"adamw": [16384, 512], "muon": [8192, 512], "adamw_8bit": [4096 + 64, 128 + 8]}


def test_checkpoints_in_memory_count_in_host_memory():
    planner, words = Planner(80 * GIB, 2), ["engine.max_model_len=1024", "train.micro_batch_tokens=1024"]
    kept = planner.predict(load_for_gpus(SMALL, [*words, "train.memory_checkpoint_every=1"]))
    # The newest and the one being written, each with master weights and two moments in float32.
    assert kept.host["checkpoints in memory, on each machine"] == 2 * 12 * PARAMETERS["Qwen/Qwen3-0.6B"]
    assert "checkpoints in memory" not in str(planner.predict(load_for_gpus(SMALL, words)).host)


def test_an_adapter_and_offloading_are_named_where_they_make_a_run_fit():
    words = [
        "engine.max_model_len=1024",
        "train.micro_batch_tokens=1024",
        "train.gradient_checkpointing=true",
    ]
    planner = Planner(9 * GIB, 2)
    found = planner.advise(planner.predict(load_for_gpus(SMALL, words)))
    assert not found.fits
    named = [found.advice, *found.others]
    assert ["lora.rank=32"] in named
    offloaded = next(one for one in named if "train.offload=optimizer" in one)
    fits = planner.predict(load_for_gpus(SMALL, [*words, *offloaded]))
    # Master, moments and gradients in float32.
    assert fits.fits and 16 * 596_049_920 in fits.host.values()


@pytest.fixture
def steps_of_known_size(monkeypatch, tmp_path):
    """Steps take what was measured once of rows of 4,096 tokens: what is tested is what follows."""
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path))

    def measured(config, shapes):
        parameters = PARAMETERS[config.model.path]
        trained = config.lora.rank * 2_100_000 or parameters
        rows = config.train.micro_batch_tokens / 16384
        activations = Activations(int(rows * parameters * 1.3), 0)
        weights = 2 * (parameters + (trained if config.lora.rank else 0))
        size = Size(parameters, trained, weights, 2 * trained, 8 * trained)
        return StepMemory(size, before_gradients=activations, with_gradients=activations)

    monkeypatch.setattr("asyncrl.extensions.planning.training.measure_step", measured)


@pytest.mark.parametrize(
    ("model", "gib", "gpus", "hints"),
    [
        ("Qwen/Qwen3-4B", 24, 1, ["lora.rank", "train.offload"]),
        ("Qwen/Qwen3-8B", 48, 1, ["lora.rank", "train.offload"]),
        # Four of them: the same is named first. All weights of 8B fit on them by turns.
        ("Qwen/Qwen3-4B", 24, 4, ["lora.rank", "train.offload"]),
        ("Qwen/Qwen3-8B", 48, 4, ["lora.rank", "train.ranks", "train.offload"]),
    ],
)
def test_an_adapter_is_named_before_more_gpus_and_host_memory(steps_of_known_size, model, gib, gpus, hints):
    planner = Planner(gib * GIB, gpus)
    found = planner.advise(planner.predict(load_for_gpus(SMALL, [f"model.path={model}"])))
    named = [found.advice, *found.others]
    keys = ("lora.rank", "train.ranks", "train.offload", "placement.sleep")
    assert [
        next(key for key in keys if any(w.startswith(f"{key}=") for w in words)) for words in named
    ] == hints
    for words in named:
        assert planner.predict(load_for_gpus(SMALL, [f"model.path={model}", *words])).fits


def test_hints_come_in_the_order_that_helps_with_few_gpus(steps_of_known_size):
    words = ["model.path=Qwen/Qwen3-8B", "train.gradient_checkpointing=false"]
    remedies = _remedies(Planner(48 * GIB, 4).predict(load_for_gpus(SMALL, words)))
    assert list(remedies) == ["time", "adapter", "turns", "share", "ranks", "offload", "context"]
    assert remedies["time"] == [["train.gradient_checkpointing=true"], ["train.micro_batch_tokens=4096"]]
    assert remedies["adapter"] == [["lora.rank=32"]]
    turns = ["placement.sleep=true", "train.schedule=synchronous", "buffer.max_staleness=0"]
    assert remedies["turns"] == [turns]
    # A turn leaves half of the context to the prompt; rows are no longer than contexts.
    assert remedies["context"] == [["engine.max_model_len=2048", "train.micro_batch_tokens=2048"]]


def test_memory_by_turns_and_a_smaller_share_are_named_before_more_gpus(steps_of_known_size):
    # What all weights of 0.6 billion parameters take leaves an engine of 30 % no room.
    words = ["engine.gpu_memory_utilization=0.6"]
    planner = Planner(21 * GIB, 4)
    found = planner.advise(
        planner.predict(load_for_gpus(SMALL, [*words, "placement.trainer=[0]", "placement.engines=[0]"]))
    )
    assert not found.fits
    firsts = [named[0].partition("=")[0] for named in (found.advice, *found.others)]
    assert firsts == ["lora.rank", "placement.sleep", "engine.gpu_memory_utilization"]


def test_the_version_before_counts_where_ranks_hold_whole_weights(steps_of_known_size):
    def predicted(*words, gib=80):
        return Planner(gib * GIB, 1).predict(load_for_gpus(SMALL, ["train.micro_batch_tokens=4096", *words]))

    name = "version before, for the check"
    weights = 2 * PARAMETERS["Qwen/Qwen3-0.6B"]
    shared, alone = predicted(), predicted("train.max_logp_error=0")
    assert not shared.notes and not alone.notes
    memory = PolicyMemory(
        load_for_gpus(SMALL), {PASSES: [Item("weights", 5)], "forward and backward": [Item("weights", 6)]},
        shared.engine, weights, 0, 0,
    )  # fmt: skip
    assert memory.version_before == weights and memory.moment(checked=False) == "forward and backward"
    assert memory.moment(checked=True) == PASSES and Item(name, weights) in memory.rank(False, checked=True)
    for words in (["train.zero_stage=3"], ["buffer.max_staleness=0"], ["train.max_logp_error=0"]):
        assert replace(memory, config=load_for_gpus(SMALL, words)).version_before == 0


def test_a_plan_says_that_the_check_of_the_version_before_will_be_left_out(steps_of_known_size, capsys):
    # Each of four ranks has a quarter of the states, and could not hold all weights again.
    words = ["train.ranks=4", "engine.gpu_memory_utilization=0.6", "train.micro_batch_tokens=4096"]
    most = Planner(80 * GIB, 5).predict(load_for_gpus(SMALL, words)).devices[0].bytes
    size = f"{most // 2**20 + 100}MiB"
    run(SMALL, *words, "--gpu", size, "--gpus", "5")
    said = capsys.readouterr().out
    assert (
        "note: GPU 0 to 3: log-probabilities of tokens that an earlier version sampled will not be checked"
        in said
    )
    assert "twice 1.1 GiB" in said and "train.zero_stage=3 needs none" in said and "fits: at most" in said
    # With three times as much memory they are.
    run(SMALL, *words, "--gpu", f"{3 * most // 2**20}MiB", "--gpus", "5")
    assert "note:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "gib"),
    [
        # Frozen weights are there once.
        (
            [
                "model.path=Qwen/Qwen3-4B",
                "lora.rank=16",
                "engine.max_model_len=4096",
                "train.micro_batch_tokens=4096",
            ],
            24,
        ),
        (
            [
                "model.path=Qwen/Qwen3-8B",
                "lora.rank=16",
                "engine.max_model_len=8192",
                "train.micro_batch_tokens=8192",
            ],
            48,
        ),
        (["model.path=Qwen/Qwen3-1.7B"], 80),
        # The commonest first GPU.
        ([], 24),
    ],
)
def test_what_people_have_is_enough(words, gib):
    found = Planner(gib * GIB, 1).predict(load_for_gpus(SMALL, words))
    assert found.fits, found.problems


def test_engines_take_the_largest_share_with_which_a_run_fits():
    config = load_for_gpus(SMALL)
    for gib, share in ((80, 0.45), (24, 0.351)):
        found = Planner(gib * GIB, 1).predict(config)
        assert (found.fits, found.utilization) == (True, share)
        assert f"engines take {share:g}" in found.placement
    # What is said stands, though less would fit.
    given = load_for_gpus(SMALL, ["engine.gpu_memory_utilization=0.7"])
    assert Planner(24 * GIB, 1).predict(given).utilization == 0.7


def test_frozen_weights_are_loaded_once_and_trained_ones_copied():
    adapter = Size(parameters=1000, trained=10, bytes=2000, trained_bytes=20, moments=80)
    whole = Size(1000, 1000, 2000, 2000, 8000)
    zero = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 10}, "bf16": {"enabled": True}}
    # Then the flat copies are the weights, and beside them are float32 masters and gradients.
    assert [kept(size, zero, 4).loading for size in (adapter, whole)] == [2020, 4000]
    assert kept(whole, zero, 1).loading == 2000 + 4000 + 4000


def test_a_fused_optimizer_keeps_no_roots_of_second_moments():
    size = Size(1000, 1000, 2000, 2000, 8000)
    zero = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 10}, "bf16": {"enabled": True}}
    plain, fused = (kept(size, zero, 4, fused=one).step for one in (False, True))
    # Float32 numbers of a quarter of the weights.
    assert plain - fused == 4 * 1000 // 4


def test_buckets_follow_the_models_size():
    sizes = [bucket_size(number) for number in (1000, 596 * 10**6, 1720 * 10**6, 8 * 10**9)]
    assert sizes == [1000, 50_000_000, 107_500_000, 200_000_000]


def test_the_cache_is_what_weights_and_the_largest_step_leave():
    shape = {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
        "intermediate_size": 128, "vocab_size": 1000,
    }  # fmt: skip
    found = engine_memory(shape, 10**6, 10**9, 0.5, 1, 16, 2)
    assert found.kv_per_token == 2 * 3 * 2 * 16 * 2
    assert found.share == 5 * 10**8 == found.weights + found.activations + found.kv_cache
    assert found.holds(found.kv_cache // found.kv_per_token) and not found.holds(found.kv_tokens + 1)
    halved = engine_memory(shape, 10**6, 10**9, 0.5, 2, 16, 2)
    assert (halved.weights, halved.kv_per_token) == (5 * 10**5, found.kv_per_token // 2)


def test_memory_of_gpus_is_that_of_those_that_may_be_used():
    text = "0, GPU-aa, 40960\n1, GPU-bb, 81920\n"
    assert choose(("1",), text) == [80 * GIB]
    assert choose(("GPU-a", "1"), text) == [40 * GIB, 80 * GIB]
    assert choose(("MIG-x",), text) == [] and choose(("0",), "") == []


def test_sizes_have_a_number_and_a_unit():
    assert parse_size("80GiB") == 80 * GIB and parse_size("24 gb") == 24 * 10**9
    for wrong in ("80", "GiB", "-1GiB", "80G", "0GiB"):
        with pytest.raises(ConfigError, match="--gpu"):
            parse_size(wrong)


def test_checkpointing_keeps_one_tensor_a_layer():
    """What a whole model takes is linear in its layers."""
    config = load_for_gpus(SMALL, ["engine.max_model_len=1024", "train.micro_batch_tokens=1024"])
    shape = architecture(config, "model.path", "Qwen/Qwen3-0.6B")
    sizes = [
        measure_step(config, {"policy": shape | {"num_hidden_layers": layers}}).before_gradients.bytes
        for layers in (2, 4, 8)
    ]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0]) > 0
    assert (sizes[1] - sizes[0]) / 2 == pytest.approx(1024 * 1024 * 2, rel=0.1)


def run(*words):
    return cli.main(["plan", "memory", *words])


def test_the_recipe_for_one_gpu_fits_40_gib_with_its_sums_shown(tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert run(SMALL, "--gpu", "40GiB", "--json", str(out)) == 0
    found = json.loads(out.read_text())
    text = capsys.readouterr().out
    assert found["fits"] is True and 18 < found["peak_gib"] <= 40
    (device,) = found["devices"]
    assert device["roles"] == ["trainer", "engine"]
    assert sum(device["gib"].values()) == pytest.approx(device["sum_gib"], abs=0.01)
    for name in (
        "weights",
        "float32 master weights",
        "optimizer states",
        "engine: KV cache",
        "CUDA contexts",
    ):
        assert name in device["gib"] and f"  {name} " in text
    assert f"fits: at most {found['peak_gib']:.2f} of 40.00 GiB" in text


def test_full_training_of_8b_with_16k_rows_fits_8_gpus_of_80_gib(tmp_path):
    out = tmp_path / "plan.json"
    assert run(BY_TURNS, "--gpu", "80GiB", "--gpus", "8", "--json", str(out)) == 0
    config = load_config(BY_TURNS)
    assert (
        config.engine.max_model_len == 16384
        and config.lora.rank == 0
        and config.model.path == "Qwen/Qwen3-8B"
    )
    assert json.loads(out.read_text())["peak_gib"] <= 80


def test_what_does_not_fit_says_which_keys_would_help(tmp_path, capsys):
    out = tmp_path / "plan.json"
    words = [SMALL, "train.gradient_checkpointing=false", "--gpu", "40GiB", "--json", str(out)]
    assert run(*words) == 1
    found = json.loads(out.read_text())
    assert found["fits"] is False and found["peak_gib"] > 40
    assert "does not fit: GPU 0:" in capsys.readouterr().out
    assert found["advice"]
    planner = Planner(40 * GIB, 1)
    changed = load_for_gpus(SMALL, ["train.gradient_checkpointing=false", *found["advice"]])
    assert planner.predict(changed).fits


def test_an_engine_whose_cache_holds_no_whole_row_does_not_fit():
    planner = Planner(16 * GIB, 2)
    found = planner.predict(load_for_gpus(SMALL, ["model.path=Qwen/Qwen3-8B", "lora.rank=8"]))
    assert any("KV cache holds" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([SMALL, "--gpu", "lots"], "--gpu"),
        ([SMALL, "--gpus", "-1"], "--gpus"),
        ([SMALL, "model.path=nobody/nothing"], "model.path"),
        ([SMALL, "train.ranks=2", "--gpus", "1"], "train.ranks"),
        (["no_such_recipe"], "no recipe"),
    ],
)
def test_wrong_input_is_refused(words, problem, capsys):
    assert run(*words) == 2
    assert problem in capsys.readouterr().err


def test_a_step_is_measured_again_only_for_what_changes_it(monkeypatch, tmp_path):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path))
    measured = []

    def counted(config, shapes):
        measured.append(config.train.micro_batch_tokens)
        return StepMemory(Size(1000, 1000, 2000, 2000, 8000), critic=None, passes=Activations(10, 5))

    monkeypatch.setattr("asyncrl.extensions.planning.training.measure_step", counted)

    def predicted(*words):
        return Planner(80 * GIB, 1).predict(load_for_gpus(SMALL, list(words))).trainer

    first = predicted()
    assert predicted("train.learning_rate=1e-4", "train.checkpoint_every=7") == first
    (tokens,) = measured
    predicted(f"train.micro_batch_tokens={2 * tokens}")
    predicted("train.zero_stage=3")
    assert measured[1:] == [2 * tokens, tokens]
