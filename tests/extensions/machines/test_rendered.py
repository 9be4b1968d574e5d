"""What a run is submitted with, checked by the tools of its cluster that work offline."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from asyncrl.config import load_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.rendered import render_k8s, render_slurm, secret_name
from asyncrl.extensions.machines.site import K8sSite, SlurmContainer, SlurmSite, load_site
from asyncrl.extensions.machines.slurm import job_port
from asyncrl.extensions.machines.spread import check_fits
from asyncrl.launch.cluster import Request

CONFIG = load_config("gridworld_grpo", ["engine.weight_transfer=collective"])
REQUEST = Request("my_run.2", nodes=3, gpus=8, image="registry.example/asyncrl:1")


def manifests(request=REQUEST):
    return list(yaml.safe_load_all(render_k8s(CONFIG, request)["run.yaml"]))


def validate(path):
    command = [str(Path(sys.executable).with_name("kubernetes-validate")), "--strict", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


SITE = K8sSite(
    cpu=96, memory_gib=900, storage_class="fast", hub_secret="hub", models_claim="models", rdma="rdma/ib",
    node_selector={"gpu": "h100"}, tolerations=["nvidia.com/gpu"],
)  # fmt: skip


@pytest.mark.slow
def test_manifests_with_all_that_a_site_asks_for_are_valid(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(render_k8s(CONFIG, REQUEST, SITE)["run.yaml"])
    assert (done := validate(file)).returncode == 0, done.stdout + done.stderr


def test_pods_get_what_a_site_asks_for():
    _, _, claim, *jobs = yaml.safe_load_all(render_k8s(CONFIG, REQUEST, SITE)["run.yaml"])
    assert claim["spec"]["storageClassName"] == "fast"
    for job in jobs:
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == {
            "cpu": 96, "memory": "900Gi", "nvidia.com/gpu": 8, "rdma/ib": 1,
        }  # fmt: skip
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        assert pod["nodeSelector"] == {"gpu": "h100"}
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        env = {one["name"]: one for one in container["env"]}
        assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
        assert {"name": "models", "mountPath": env["HF_HOME"]["value"]} in container["volumeMounts"]
        assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} in pod["volumes"]


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
        assert container["resources"] == {
            "requests": {"cpu": 72, "nvidia.com/gpu": 8, "memory": "64Gi"},
            "limits": {"nvidia.com/gpu": 8, "memory": "64Gi"},
        }
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
    # Whole machines, where the site says nothing of their shares.
    assert {"#SBATCH --exclusive", "#SBATCH --mem=0"} <= set(lines)
    assert json.loads(files["recipe.json"]) == CONFIG.model_dump(mode="json")


def test_a_slurm_script_says_what_its_site_asks_for():
    site = SlurmSite(
        partition="gpu", account="lab", qos="long", time="08:00:00", cpus=48, lines=["--constraint=h100"],
        setup=["module load cuda"], scratch="/local disk", models="/shared/hub",
    )  # fmt: skip
    script = render_slurm(CONFIG, Request("run", nodes=2, gpus=8, memory_gib=512), site)["train.sbatch"]
    options = {line for line in script.splitlines() if line.startswith("#SBATCH")}
    assert options >= {
        "#SBATCH --partition=gpu", "#SBATCH --account=lab", "#SBATCH --qos=long", "#SBATCH --time=08:00:00",
        "#SBATCH --cpus-per-task=48", "#SBATCH --mem=512G", "#SBATCH --constraint=h100",
    }  # fmt: skip
    assert "#SBATCH --exclusive" not in options
    after = script.partition("set -eu\n")[2]
    assert after.startswith("module load cuda\n")
    exports = after.removeprefix("module load cuda\n").partition("export ASYNCRL_TOKEN")[0]
    shown = subprocess.run(
        ["bash", "-c", f'{exports}echo "$XDG_STATE_HOME $HF_HOME"'],
        env={"USER": "me", "SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout == "/local disk/asyncrl-me-7/state /shared/hub\n"


STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
"""
SRUN = (
    STUB
    + """while [ "${1#-}" != "$1" ]; do
    case "$1" in --nodelist) shift;; --container-workdir=*) cd "${1#*=}";; esac
    shift
done
exec "$@"
"""
)
APPTAINER = (
    STUB
    + """while [ "$1" != /images/one.sif ]; do shift; done
shift
exec "$@"
"""
)
AWAITED = """[ "$1" = serve ] || until grep -q "^asyncrl serve" "$CALLS"; do sleep 0.05; done
"""
"""The head ends once the node has started."""
STEP = "srun --overlap --nodes=1 --ntasks=1 --nodelist {} --export=ALL"


def run_script(folder, site, nodes=2, gpus=0):
    """Run a rendered script with stand-ins for Slurm's programs; return their calls, and those of asyncrl."""
    (folder / "bin").mkdir()
    programs = {
        "srun": SRUN, "apptainer": APPTAINER, "asyncrl": STUB + AWAITED * (nodes - 1),
        "scontrol": "#!/bin/sh\nprintf 'n1\\nn2\\n'\n",
    }  # fmt: skip
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    script = folder / "train.sbatch"
    script.write_text(render_slurm(CONFIG, Request("run", nodes=nodes, gpus=gpus), site)["train.sbatch"])
    calls = folder / "calls"
    env = {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin", "CALLS": str(calls), "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1", "USER": "me",
    }  # fmt: skip
    # To a file: what is started again holds its output a moment longer.
    with open(folder / "output", "wb") as output:
        command = ["bash", str(script), "r.json"]
        code = subprocess.run(
            command, cwd=folder, env=env, stdout=output, stderr=output, check=False, timeout=100
        )
    assert code.returncode == 0, (folder / "output").read_text()
    return sorted(calls.read_text().splitlines())


def test_each_step_of_a_job_runs_in_the_container_of_its_site(tmp_path):
    container = SlurmContainer(image="registry.example#one:1", mounts=["/data", "/d:/e:ro"])
    calls = run_script(tmp_path, SlurmSite(container=container, models="/hub"))
    where = f"{tmp_path}:{tmp_path},/tmp:/tmp,/hub:/hub,/data:/data,/d:/e:ro"
    inside = (
        f"--container-image=registry.example#one:1 --container-mounts={where} --container-workdir={tmp_path}"
    )
    serve = "asyncrl serve node --launcher http://n1:20007 --name n2"
    train = (
        "asyncrl train r.json run.name=run --on nodes --nodes 1 --host 0.0.0.0 --advertise n1 --port 20007"
    )
    assert calls == sorted([
        serve, train, f"{STEP.format('n1')} {inside} {train}", f"{STEP.format('n2')} {inside} {serve}",
    ])  # fmt: skip


def test_apptainer_starts_the_container_inside_of_a_step(tmp_path):
    container = SlurmContainer(image="/images/one.sif", runtime="apptainer", mounts=["/data"])
    calls = run_script(tmp_path, SlurmSite(container=container), nodes=1, gpus=8)
    inside = (
        f"exec --nv --bind {tmp_path}:{tmp_path} --bind /tmp:/tmp --bind /data:/data --pwd {tmp_path} "
        "/images/one.sif asyncrl train r.json run.name=run"
    )
    assert calls == [
        f"apptainer {inside}", "asyncrl train r.json run.name=run", f"{STEP.format('n1')} apptainer {inside}",
    ]  # fmt: skip


def test_without_a_container_the_run_starts_the_steps_itself(tmp_path):
    assert run_script(tmp_path, SlurmSite(), nodes=1) == ["asyncrl train r.json run.name=run --on slurm"]


def test_a_container_of_a_site_file_is_checked(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('[slurm.container]\nimage = "/i.sqsh"\nmounts = ["/data:/data"]\n')
    assert load_site(file).slurm.container.mounts == ["/data:/data"]
    for text, problem in (
        ('mounts = ["data"]', r"slurm\.container\.mounts\.0: .*got 'data'"),
        ('runtime = "docker"', r"slurm\.container\.runtime: .*'pyxis' or 'apptainer', got 'docker'"),
        ('img = "x"', r"slurm\.container\.img: .*allowed: image, runtime, mounts"),
    ):
        file.write_text(f"[slurm.container]\n{text}\n")
        with pytest.raises(ConfigError, match=problem):
            load_site(file)


def test_what_a_site_file_says_is_checked(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('[slurm]\npartition = "gpu"\ncpus = 48\n\n[k8s]\nmemory_gib = 900\n')
    site = load_site(file)
    assert (site.slurm.partition, site.slurm.cpus, site.k8s.memory_gib) == ("gpu", 48, 900)
    assert load_site(None).slurm == SlurmSite()
    for text, problem in (
        ("[slurm]\npartitions = 'gpu'\n", r"slurm\.partitions: .*; allowed: partition, account, qos"),
        ("[slurm]\ncpus = -1\n", r"slurm\.cpus: .*greater than or equal to 0, got -1"),
        ("[slurm\n", "site.toml"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            load_site(file)
    with pytest.raises(ConfigError, match="No such file"):
        load_site(tmp_path / "none.toml")


def test_two_jobs_on_a_machine_have_ports_of_their_own():
    assert job_port({"SLURM_JOB_ID": "4711"}) == 24711
    assert job_port({"SLURM_JOB_ID": "1234567"}) != job_port({"SLURM_JOB_ID": "1234568"})
    with pytest.raises(ConfigError, match="not inside a job of Slurm"):
        job_port({})
