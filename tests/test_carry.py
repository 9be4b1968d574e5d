"""What is carried to a machine without a network arrives there whole, in calls of limited size."""

import lzma
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.scripts import load_script

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def carry(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return load_script("acceptance/carry")


def wheel(folder, name, files):
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def test_the_calls_together_unpack_to_the_wheels_without_what_is_left_out(carry, tmp_path):
    kernels = bytes(range(256)) * 64
    wheels = [
        wheel(tmp_path, "vllm", {
            "vllm/__init__.py": b"version = 1\n", "vllm/_C_stable_libtorch.abi3.so": kernels,
            "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": b"three", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": b"two",
            "vllm/_moe_C.abi3.so": b"experts", "vllm-1.0.dist-info/METADATA": b"Name: vllm\n",
        }),
        wheel(tmp_path, "peft", {"peft/__init__.py": b"", "peft/tests/test_it.py": b"x"}),
    ]  # fmt: skip
    content = carry.pack(wheels)
    calls = carry.write(tmp_path / "out", content, 100, "python3 -c 'import vllm; print(vllm.version)'")
    assert len(calls) == len(carry.cut(content, 100)) > 1
    assert all(
        (tmp_path / "out" / f"call-{n}" / "part").stat().st_size <= 100 for n in range(1, len(calls) + 1)
    )
    site, archive = tmp_path / "site", tmp_path / "carried.tar.xz"
    said = ""
    for call in calls:
        command = call.read_text().replace(carry.SITE, str(site)).replace("/tmp/carried.tar.xz", str(archive))
        said = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path / "out", check=True, capture_output=True, text=True
        ).stdout
    assert said == "1\n"
    found = {
        str(file.relative_to(site)) for file in site.rglob("*") if file.is_file() and file.suffix != ".pyc"
    }
    assert found == {
        "vllm/__init__.py", "vllm/_C_stable_libtorch.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        "vllm-1.0.dist-info/METADATA", "peft/__init__.py",
    }  # fmt: skip
    assert (site / "vllm/_C_stable_libtorch.abi3.so").read_bytes() == kernels


def test_what_is_packed_is_the_same_each_time(carry, tmp_path):
    one = wheel(tmp_path, "peft", {"peft/b.py": b"b", "peft/a.py": b"a"})
    assert lzma.decompress(carry.pack([one])) == lzma.decompress(carry.pack([one]))


def test_packages_come_in_the_versions_of_the_lock_but_for_those_that_are_there(carry):
    asked, versions = carry.wanted(), carry.pins()
    assert {f"vllm=={versions['vllm']}", f"deepspeed=={versions['deepspeed']}"} <= set(asked)
    assert not any(one.startswith(("torch==", "transformers==", "numpy==", "nvidia-")) for one in asked)
    # Those that the lock has lost are noticed here.
    assert len(asked) >= 0.8 * len(carry.CARRIED)
