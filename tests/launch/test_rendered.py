"""What a run is submitted with, checked by the tools of its cluster that work offline."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from asyncrl.config import load_config
from asyncrl.errors import ConfigError
from asyncrl.launch.rendered import Request, render_k8s, render_slurm, secret_name
from asyncrl.launch.spread import check_fits

CONFIG = load_config("gridworld_grpo", ["engine.weight_transfer=collective"])
REQUEST = Request("my_run.2", nodes=3, gpus=8, image="registry.example/asyncrl:1")


def manifests(request=REQUEST):
    return list(yaml.safe_load_all(render_k8s(CONFIG, request)["run.yaml"]))


def validate(path):
    command = [str(Path(sys.executable).with_name("kubernetes-validate")), "--strict", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.slow
def test_manifests_are_valid_and_a_broken_one_is_noticed(tmp_path):
    good = tmp_path / "run.yaml"
    good.write_text(render_k8s(CONFIG, REQUEST)["run.yaml"])
    assert (done := validate(good)).returncode == 0, done.stdout + done.stderr
    broken = manifests()[3]
    del broken["spec"]["template"]["spec"]["containers"]
    good.write_text(yaml.safe_dump(broken))
    done = validate(good)
    assert done.returncode == 1
    assert "'containers' is a required property" in done.stdout + done.stderr


def test_pods_find_the_head_by_the_name_that_the_service_gives_it():
    recipe, service, _, head, nodes = manifests()
    assert json.loads(recipe["data"]["recipe.json"]) == CONFIG.model_dump(mode="json")
    assert service["metadata"]["name"] == "my-run-2"
    pods = [job["spec"]["template"] for job in (head, nodes)]
    for pod in pods:
        assert pod["metadata"]["labels"].items() >= service["spec"]["selector"].items()
        assert pod["spec"]["subdomain"] == "my-run-2"
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        secret = container["env"][0]["valueFrom"]["secretKeyRef"]
        assert (container["env"][0]["name"], secret["name"]) == ("ASYNCRL_TOKEN", secret_name("my_run.2"))
    assert pods[0]["spec"]["hostname"] == "my-run-2-head"
    assert "--nodes 2 --host 0.0.0.0 --advertise my-run-2-head.my-run-2" in _command(pods[0])
    assert "--launcher http://my-run-2-head.my-run-2:8700 --name my-run-2-$JOB_COMPLETION_INDEX" in _command(
        pods[1]
    )
    assert (nodes["spec"]["completionMode"], nodes["spec"]["completions"]) == ("Indexed", 2)


def _command(pod):
    return pod["spec"]["containers"][0]["command"][2]


def test_one_machine_needs_no_nodes_and_an_image_is_asked_for():
    assert [one["kind"] for one in manifests(Request("a", 1, image="i"))].count("Job") == 1
    with pytest.raises(ConfigError, match="--image: name a container image"):
        render_k8s(CONFIG, Request("a", 2))


def test_a_run_that_does_not_fit_on_its_machines_is_not_rendered():
    over = load_config("gridworld_grpo", [
        "engine.weight_transfer=http", "engine.nodes=3", "engine.tensor_parallel=24", "train.ranks=8",
    ])  # fmt: skip
    check_fits(over, 4, 8)
    with pytest.raises(ConfigError, match=r"engine\.nodes: no further machine has 8 GPUs for part 3"):
        check_fits(over, 3, 8)
    with pytest.raises(ConfigError, match=r"engine\.nodes = 3: the run has one machine; raise --nodes"):
        check_fits(over, 1, 8)


def test_a_slurm_script_is_a_program_that_bash_reads(tmp_path):
    files = render_slurm(CONFIG, Request("it's one", nodes=4, gpus=2))
    script = tmp_path / "train.sbatch"
    script.write_text(files["train.sbatch"])
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    lines = files["train.sbatch"].splitlines()
    assert {"#SBATCH --nodes=4", "#SBATCH --gpus-per-node=2", "#SBATCH --no-kill"} <= set(lines)
    assert json.loads(files["recipe.json"]) == CONFIG.model_dump(mode="json")
