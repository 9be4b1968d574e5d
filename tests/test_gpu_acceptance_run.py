"""All phases of the short acceptance run on a CPU, what each measures and omits; a small model's learning curve."""

import json
import sys
from pathlib import Path

import pytest

from tests.scripts import load_script

SCRIPTS = Path(__file__).parents[1] / "scripts"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """The records of one run of all phases, by their names."""
    folder = tmp_path_factory.mktemp("short")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("OMP_NUM_THREADS", "1")
        script = load_script("gpu_acceptance")
        words = ["--short", "--device", "cpu", "--json", str(folder / "short.json")]
        script.main([*words, "--work", str(folder / "work")])
    return {one["name"]: one for one in json.loads((folder / "short.json").read_text())["parts"]}


def figures(record):
    """Return the values of a phase that has passed, by their names."""
    assert (record["status"], record["reason"]) == ("passed", "on the CPU"), record
    assert not [one for one in record["omitted"] if one["failed"]]
    return {one["name"]: one["value"] for one in record["figures"]}


def omitted(record):
    return {one["name"]: one["reason"] for one in record["omitted"]}


def test_copies_that_need_cuda_are_omitted(short):
    kinds = {"fresh pages", "reused pages", "shared memory"}
    found = figures(short["copy_rates"])
    assert found.keys() == {f"to the host, {kind}" for kind in kinds} | {"to the device, pageable"}
    assert min(found.values()) > 0
    assert omitted(short["copy_rates"]) == dict.fromkeys(
        (
            "to the host, pinned",
            "to the host, registered shared memory",
            "to the device, registered shared memory",
        ),
        "needs CUDA",
    )


def test_a_trainers_forms_are_measured_one_at_a_time(short):
    found = figures(short["trainer_matrix"])
    row = "0.6B, rows of 128"
    rates = ["0.6B, rows of 64", row, f"{row}, compiled MLP and norms"]
    rates += [f"{row}, head chunk of 2^{power} logits" for power in (16, 18)]
    forms = ("foreach", "fused")
    adamw = [f"0.6B, {form} AdamW: {what}" for form in forms for what in ("its step", "peak of its step")]
    assert found.keys() == {*rates, *(f"{rate}: peak" for rate in rates), *adamw}
    assert min(found.values()) > 0
    # foreach keeps the roots of all second moments: 4 bytes for each of 1.3 million parameters.
    apart = found["0.6B, foreach AdamW: peak of its step"] - found["0.6B, fused AdamW: peak of its step"]
    assert apart * 2**30 == pytest.approx(4 * 1_312_896, rel=0.02)
    assert omitted(short["trainer_matrix"]).keys() == {
        f"{row}, cuDNN's attention first",
        f"{row}, FlexAttention",
    }


def test_a_versions_way_is_measured_part_by_part(short):
    found = figures(short["publish_breakdown"])
    parts = ("version", "gathered, first", "gathered, again", "written with its checksum", "prepared")
    parts += ("read to the device", "straight into the file", "checksum of the file")
    engine = ("version", "prepare", "its checksum", "commit", "pause")
    assert found.keys() == {
        *(f"0.6B: {part}" for part in parts),
        *(f"engine, {when}: {part}" for when in ("first", "again") for part in engine),
    }
    assert found["0.6B: version"] == 64 * 62_500 * 2 / 1e9
    for when in ("first", "again"):
        assert 0 < found[f"engine, {when}: its checksum"] <= found[f"engine, {when}: prepare"]
        assert 0 < found[f"engine, {when}: pause"] <= found[f"engine, {when}: commit"]
    assert omitted(short["publish_breakdown"]) == {"0.6B: straight into the registered file": "needs CUDA"}


def test_engines_decode_by_both_routes(short):
    found = figures(short["decode_calibration"])
    assert found.keys() == {f"4 sequences after 64, {whose} route" for whose in ("our", "vLLM's")}
    assert min(found.values()) > 0


def test_blocks_and_hashes_change_one_at_a_time(short):
    found = figures(short["cached_turns"])
    assert found.keys() == {
        f"turns after 256 tokens, blocks of {size}, {name}" for size in (16, 64) for name in ("sha256", "xxhash")
    }  # fmt: skip
    assert min(found.values()) > 0


def test_a_new_version_costs_conversations_something_with_their_cache_kept_and_cleared(short):
    found = figures(short["kept_cache"])
    for kept in ("true", "false"):
        label = f"keep_kv={kept}"
        assert found[f"{label}: rate before"] > 0 and found[f"{label}: pause"] > 0
        assert f"{label}: sampling lost" in found
        # On a busy machine a rate may not come back in time.
        regained = f"{label}: rate regained"
        assert found.get(regained, 0.0) >= 0 and (regained in found) != (
            regained in omitted(short["kept_cache"])
        )


def test_memory_is_compared_with_the_prediction_while_loading_too_and_an_engine_sleeps(short):
    found = figures(short["predicted_memory"])
    moments = ("loading", "passes without gradient", "forward and backward", "optimizer step")
    models = ("0.6B", "0.6B lora.rank=16")
    compared = {f"{name}: {moment}" for name in models for moment in moments}
    turns = {f"engine {does}, {when}" for does in ("falls asleep", "wakes") for when in ("first", "again")}
    assert found.keys() == {*compared, *(f"{one}, measured" for one in compared), *turns}
    for name in models:
        assert found[f"{name}: forward and backward"] == pytest.approx(1, abs=0.1)
    # An adapter has its model loaded once.
    assert found["0.6B lora.rank=16: loading, measured"] < 0.6 * found["0.6B: loading, measured"]
    assert omitted(short["predicted_memory"]).keys() == {
        f"freed asleep, {when}" for when in ("first", "again")
    }


def test_a_file_goes_over_a_group_of_one_rank_and_weights_are_swapped_bit_by_bit(short):
    found = figures(short["one_rank"])
    times = {f"{what}, {when}" for what in ("kept", "swapped and put back") for when in ("first", "again")}
    group = {"gloo: joined", "gloo: a file sent", "gloo: a file received"}
    assert found.keys() == group | times | {"all-reduce of one rank", "weights that came back bit by bit"}
    # Eleven in each of four layers, the embeddings and the last norm.
    assert found["weights that came back bit by bit"] == 4 * 11 + 2


def test_what_has_never_run_on_a_gpu_passes(short):
    assert figures(short["never_run"]) == {"online_dpo": 1.0, "online_ipo": 1.0, "resume": 1.0}


def test_a_model_learns_for_the_same_time_and_is_tested_before_and_after(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    load_script("gpu_acceptance")
    module, context = sys.modules["acceptance.learning_curve"], sys.modules["acceptance.context"]
    monkeypatch.setattr(module, "LIMITS", (1,))
    rows = tmp_path / "rows.jsonl"
    row = {"Body": "There are 3 birds.", "Question": "2 more come. How many?", "Answer": 5.0}
    rows.write_text(
        "".join(
            json.dumps(row | {"ID": n, "Equation": "( 3.0 + 2.0 )", "Body": f"Day {n}."}) + "\n"
            for n in range(40)
        )
    )
    model = context.Context(tmp_path).model(**context.SMALL | {"vocab_size": context.WORDS})
    place = context.Context(tmp_path, rows, str(model), curve_s=3.0, kept=tmp_path / "kept")
    found = list(module.smollm2_staleness(place))
    assert not [one for one in found if getattr(one, "failed", False)], found
    values = {one.name: one.value for one in found if hasattr(one, "value")}
    assert values["limit 1: steps"] >= 1
    for when in ("before", "after"):
        low, mean, high = (values[f"limit 1: held out, {when}{end}"] for end in (", low", "", ", high"))
        assert 0 <= low <= mean <= high <= 1
    kept = (tmp_path / "kept" / "limit-1" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(kept[0])["step"] == 1
