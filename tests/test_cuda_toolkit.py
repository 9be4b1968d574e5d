"""Which CUDA compiler engines would build kernels with: stubs of nvcc, and vLLM itself is asked where it looks."""

import os
import shutil

import pytest

from asyncrl.credentials import read_credentials
from asyncrl.cuda_toolkit import NO_TOOLKIT, engine_variables, find_toolkit, torch_cuda
from asyncrl.services.engine import service
from asyncrl.services.engine.service import EngineOptions, build_env

TORCH = (13, 0)
OFF = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_USE_DEEP_GEMM": "0"}
SAID = "Cuda compilation tools, release {}, V{}.88"


@pytest.fixture
def toolkit(tmp_path):
    """Return what makes a toolkit of a version, and gives its folder."""

    def of(name, version, links=True):
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program(
            home / "bin" / "nvcc",
            f"echo 'nvcc: NVIDIA (R) Cuda compiler driver'; echo '{SAID.format(version, version)}'",
        )
        if links:
            (home / "lib64").mkdir()
            (home / "lib64" / "libcudart.so").touch()
        return home

    return of


@pytest.fixture
def path(tmp_path):
    """Folders of programs, with a ninja and without an nvcc."""
    (tmp_path / "tools").mkdir()
    program(tmp_path / "tools" / "ninja", "true")
    return str(tmp_path / "tools")


def program(file, script):
    file.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    file.chmod(0o755)


def test_the_toolkit_is_looked_for_in_the_order_of_vllm(toolkit, path, tmp_path):
    by_home, by_path, last = toolkit("home", "13.0"), toolkit("path", "12.8"), toolkit("cuda", "12.4")
    env = {"CUDA_HOME": str(by_home), "CUDA_PATH": str(last), "PATH": f"{path}:{by_path}/bin"}
    found = find_toolkit(env, str(last))
    assert (found.nvcc, found.release, found.said_by) == (f"{by_home}/bin/nvcc", (13, 0), "CUDA_HOME")
    found = find_toolkit(env | {"CUDA_HOME": ""}, str(by_path))
    assert (found.nvcc, found.said_by) == (f"{last}/bin/nvcc", "CUDA_PATH")
    found = find_toolkit({"PATH": env["PATH"]}, str(last))
    assert (found.release, found.said_by) == ((12, 8), "PATH")
    found = find_toolkit({"PATH": path}, str(last))
    assert (found.release, found.said_by) == ((12, 4), "")
    assert find_toolkit({"PATH": path}, str(tmp_path / "nowhere")) is None
    # vLLM looks no further than CUDA_HOME.
    assert find_toolkit({**env, "CUDA_HOME": str(tmp_path)}, str(last)) is None


@pytest.mark.parametrize("kind", ["CUDA_HOME", "CUDA_PATH", "PATH", ""])
def test_vllm_looks_where_we_do(toolkit, path, tmp_path, monkeypatch, kind):
    flashinfer = pytest.importorskip("vllm.utils.flashinfer")
    home = toolkit("cuda", "12.4")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{path}:{home}/bin" if kind == "PATH" else path)
    if kind.startswith("CUDA"):
        monkeypatch.setenv(kind, str(home))
    default = home if kind == "" else tmp_path / "nowhere"
    monkeypatch.setattr(flashinfer, "_DEFAULT_CUDA_HOME", str(default))
    assert (
        flashinfer._flashinfer_nvcc_path()
        == find_toolkit(os.environ, str(default)).nvcc
        == f"{home}/bin/nvcc"
    )
    for name, value in engine_variables(os.environ, TORCH, str(default)).items():
        monkeypatch.setenv(name, value)
    assert flashinfer._flashinfer_nvcc_path() is None
    assert flashinfer.envs.VLLM_USE_FLASHINFER_SAMPLER is False
    assert flashinfer.envs.VLLM_USE_DEEP_GEMM is False


@pytest.mark.parametrize("version", ["12.8", "13.2", "11.8"])
def test_engines_are_kept_from_a_toolkit_of_another_cuda_than_torchs(toolkit, path, version):
    env = {"CUDA_HOME": str(toolkit("cuda", version)), "PATH": path}
    assert engine_variables(env, TORCH) == OFF | {"CUDA_HOME": str(NO_TOOLKIT)}
    assert not (NO_TOOLKIT / "bin").exists()


def test_engines_compile_with_a_toolkit_of_torchs_cuda(toolkit, path):
    env = {"CUDA_HOME": str(toolkit("cuda", "13.0")), "PATH": path}
    assert engine_variables(env, TORCH) == {}
    # FlashInfer runs ninja.
    assert (
        engine_variables(env | {"PATH": f"{env['CUDA_HOME']}/bin"}, TORCH)["VLLM_USE_FLASHINFER_SAMPLER"]
        == "0"
    )


def test_a_toolkit_that_kernels_cannot_be_linked_with_is_none(toolkit, path):
    """That of the lock: pip's packages have neither lib64 nor libcudart.so."""
    home = toolkit("cu13", "13.0", links=False)
    env = {"CUDA_HOME": str(home), "PATH": path}
    assert find_toolkit(env).unfit(TORCH) == "it has no lib64/libcudart.so"
    assert engine_variables(env, TORCH) == OFF | {"CUDA_HOME": str(NO_TOOLKIT)}


def test_without_a_toolkit_the_sampler_does_not_try_to_compile(path, tmp_path):
    """It does not ask for nvcc, and the first request with top_p and without log-probabilities would end the engine."""
    assert engine_variables({"PATH": path}, TORCH, str(tmp_path / "nowhere")) == OFF


def test_what_the_user_asks_for_stands(toolkit, path):
    env = {"CUDA_HOME": str(toolkit("cuda", "12.8")), "PATH": path}
    assert engine_variables(env | {"VLLM_USE_FLASHINFER_SAMPLER": "1"}, TORCH) == {}
    found = engine_variables(env | {"VLLM_USE_DEEP_GEMM": "1"}, TORCH)
    assert "VLLM_USE_DEEP_GEMM" not in found and found["CUDA_HOME"] == str(NO_TOOLKIT)


def test_an_nvcc_that_does_not_say_its_version_is_of_another(tmp_path, path):
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "nvcc", "exit 1")
    found = find_toolkit({"CUDA_HOME": str(tmp_path), "PATH": path})
    assert (found.release, found.unfit(TORCH)) == (None, "it is of an unknown CUDA")


def test_an_engine_on_gpus_gets_these_variables_and_one_on_a_cpu_none(toolkit, path, monkeypatch):
    env = {"CUDA_HOME": str(toolkit("cuda", "12.8")), "PATH": path}
    credentials = read_credentials("the-token-of-this-run")
    monkeypatch.setattr(service, "torch_cuda", lambda: TORCH)
    for on_cpu, home in ((True, env["CUDA_HOME"]), (False, str(NO_TOOLKIT))):
        monkeypatch.setattr(service, "on_cpu", lambda on_cpu=on_cpu: on_cpu)
        built = build_env(EngineOptions("m"), credentials, base=env)
        assert built["CUDA_HOME"] == home
        assert ("VLLM_USE_FLASHINFER_SAMPLER" in built) is not on_cpu


def test_a_cpu_build_of_torch_has_no_cuda():
    from importlib.metadata import version

    assert (torch_cuda() is None) == ("+cpu" in version("torch"))
