"""Files that people bring are read as they are written: by any editor, table library or compressor."""

import gzip
import json

import pyarrow
import pytest

from asyncrl.errors import ConfigError, InputError
from asyncrl.textfile import json_lines, json_records, parse_lines, plain_suffix, read_text, read_toml

UNUSUAL = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\u00a0", "\ufeff"]
"""Characters at which `str.splitlines` or `str.strip` cut, where JSON does not."""


def write(path, *values, end="\n", start=b""):
    path.write_bytes(
        start + end.join(json.dumps(one, ensure_ascii=False) for one in values).encode() + end.encode()
    )
    return path


@pytest.mark.parametrize("character", UNUSUAL, ids=lambda one: f"U+{ord(one):04X}")
def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path, character):
    rows = [{"q": f"a{character}b{character}"}, {"q": "c"}]
    # JSON escapes control characters below U+0020; the others stand as they are.
    path = write(tmp_path / "x.jsonl", *rows)
    assert list(json_lines(path)) == [(1, rows[0]), (2, rows[1])]
    assert parse_lines(path.read_bytes()) == parse_lines(path.read_text(encoding="utf-8")) == rows


@pytest.mark.parametrize("end", ["\n", "\r\n", " \r\n\r\n"])
def test_lines_may_end_as_any_system_writes_them(tmp_path, end):
    path = write(tmp_path / "x.jsonl", {"q": 1}, {"q": 2}, end=end)
    assert [value for _, value in json_lines(path)] == [{"q": 1}, {"q": 2}]


def test_a_byte_order_mark_is_no_part_of_a_value_wherever_files_were_joined(tmp_path):
    one = write(tmp_path / "one.jsonl", {"q": 1}, start=b"\xef\xbb\xbf").read_bytes()
    (tmp_path / "both.jsonl").write_bytes(one + one)
    assert [value for _, value in json_lines(tmp_path / "both.jsonl")] == [{"q": 1}, {"q": 1}]


def zstd(data):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst", "x.jsonl"])
def test_compressed_lines_are_read_whatever_the_name_says(tmp_path, pack, name):
    rows = [{"q": number} for number in range(5000)]
    path = tmp_path / name
    path.write_bytes(pack(write(tmp_path / "plain", *rows).read_bytes()))
    assert [value for _, value in json_lines(path)] == rows
    path.write_bytes(path.read_bytes() * 2)
    assert [value for _, value in json_lines(path)] == 2 * rows


def test_a_damaged_file_is_named_with_its_setting(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    for pack in (gzip.compress, zstd):
        packed = pack(b'{"q": 1}\n' * 50_000)
        path.write_bytes(packed[: len(packed) // 2])
        with pytest.raises(ConfigError, match=r"env\.task_file: .*x\.jsonl\.gz: cannot be read: "):
            list(json_lines(path, "env.task_file"))
    with pytest.raises(ConfigError, match=r"gone: cannot be read: No such file"):
        list(json_lines(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b'{"q": 1}\n{"q": \n', "line 2: no JSON: "),
        (b'{"q": 1}\n\n{"q": "\xff"}\n', "line 3: no JSON: is not UTF-8: invalid start byte at byte 7"),
        ('{"q": 1}\n'.encode("utf-16"), "line 1: no JSON: is UTF-16; save it as UTF-8"),
        (b"[" * 100_000 + b"\n", "line 1: no JSON that can be read: nested too deeply"),
    ],
)
def test_a_line_that_is_no_json_is_named(tmp_path, written, said):
    path = tmp_path / "x.jsonl"
    path.write_bytes(written)
    with pytest.raises(InputError) as caught:
        list(json_lines(path))
    assert f"{path}, {said}" in str(caught.value)


def test_null_is_an_absent_field_of_a_record_and_a_value_within_one(tmp_path):
    path = write(tmp_path / "x.jsonl", {"id": 1, "seed": None, "data": {"x": None}, "zero": 0, "no": False})
    assert list(json_records(path)) == [(1, {"id": 1, "data": {"x": None}, "zero": 0, "no": False})]


def test_a_record_is_an_object(tmp_path):
    with pytest.raises(InputError, match=r"line 2: must be an object, got list"):
        list(json_records(write(tmp_path / "x.jsonl", {}, [1])))


def test_a_files_kind_is_what_its_name_says_before_its_compression():
    assert [plain_suffix(name) for name in ("a.jsonl", "a.json.gz", "b/a.csv.zst", "a.gz")] == [
        ".jsonl",
        ".json",
        ".csv",
        "",
    ]


def test_toml_may_begin_with_a_byte_order_mark_and_end_its_lines_with_crlf(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b'\xef\xbb\xbf[run]\r\nname = "a"\r\n')
    assert read_toml(path) == {"run": {"name": "a"}}
    assert read_text(path).startswith("[run]")
