"""What a job asks of a cluster holds the run that it is for."""

from dataclasses import replace

import yaml

from asyncrl import cli
from asyncrl.extensions.machines.rendered import render_k8s
from asyncrl.extensions.planning.job import GIB, job_needs
from asyncrl.extensions.planning.load import load_for_gpus
from asyncrl.launch.cluster import cluster_request
from asyncrl.run.checkpoints import KEPT_CHECKPOINTS
from tests.extensions.planning.recipes import BY_TURNS, SMALL

PARAMETERS_8B = 8_190_735_360


def needs(*words, recipe=BY_TURNS, gpus=8):
    return job_needs(load_for_gpus(recipe, words), gpus)


def test_the_run_folder_has_room_for_the_checkpoints_that_stay_and_the_one_being_written():
    # Weights in bfloat16; master weights and two moments in float32.
    checkpoint = (2 + 12) * PARAMETERS_8B
    assert needs().storage_gib * GIB >= (KEPT_CHECKPOINTS + 1) * checkpoint
    adapter = needs("lora.rank=16").storage_gib
    assert (KEPT_CHECKPOINTS + 1) * 2 * PARAMETERS_8B < adapter * GIB < needs().storage_gib * GIB / 3


def test_a_machine_has_memory_for_three_published_versions_and_what_is_offloaded():
    found = needs()
    assert found.shared_memory_gib * GIB >= 3 * 2 * PARAMETERS_8B
    assert found.memory_gib > found.shared_memory_gib
    more = needs("train.offload=optimizer", "train.zero_stage=3").memory_gib - found.memory_gib
    assert more * GIB >= 12 * PARAMETERS_8B - 8 * GIB
    files = needs("train.offload=optimizer", "train.zero_stage=3", "train.offload_folder=nvme")
    assert files.memory_gib == found.memory_gib


def test_the_volume_that_kubernetes_is_asked_for_has_that_room():
    config = load_for_gpus(BY_TURNS, ["engine.weight_transfer=http"])
    request = replace(cluster_request(config, "run", 2, 8), image="i")
    rendered = yaml.safe_load_all(render_k8s(config, request)["run.yaml"])
    (claim,) = (one for one in rendered if one["kind"] == "PersistentVolumeClaim")
    asked = claim["spec"]["resources"]["requests"]["storage"]
    assert asked == f"{needs().storage_gib}Gi"
    assert int(asked.removesuffix("Gi")) * GIB >= (KEPT_CHECKPOINTS + 1) * (2 + 12) * PARAMETERS_8B


def test_a_model_of_unknown_shape_gets_the_sizes_of_a_small_one():
    config = load_for_gpus(SMALL, ["model.path=nobody/nothing"])
    assert cluster_request(config, "run", 2, 8).storage_gib == 100


def test_the_command_says_what_a_job_asks_for(tmp_path, capsys):
    site = tmp_path / "site.toml"
    site.write_text('[slurm]\naccount = "lab"\n')
    words = [
        SMALL,
        "engine.weight_transfer=http",
        "--nodes",
        "2",
        "--gpus",
        "8",
        "--site",
        str(site),
    ]
    assert cli.main(["plan", "cluster", *words]) == 0
    said = capsys.readouterr().out
    for part in (
        "2 machine(s) with 8 GPU(s) each",
        "--nodes=2",
        "--gpus-per-node=8",
        "--exclusive",
        "--account=lab",
        "Kubernetes:",
        "job run-node: 1 pod(s), each cpu 72, nvidia.com/gpu 8, memory",
    ):
        assert part in said
    assert "engine-0" in said and "GiB on the head" in said
    assert cli.main(["plan", "cluster", SMALL, "--nodes", "0"]) == 2
