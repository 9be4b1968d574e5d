"""Rows of text files are what is written in them, and what cannot be read is named with file and line."""

import gzip
import json

import pytest

from asyncrl.errors import ConfigError, InputError
from asyncrl.rows.files import read_text_rows, where
from asyncrl.rows.source import read_rows


def rows(path):
    return [row for _, row in read_text_rows(path)]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\v", "\f"])
def test_lines_end_at_newlines_alone(tmp_path, separator):
    # Other separators stand inside JSON texts, as json.dumps(ensure_ascii=False) and pandas write them.
    path = tmp_path / "a.jsonl"
    text = f"a{separator}b" if separator > "\x1f" else "ab"
    path.write_text(json.dumps({"q": text}, ensure_ascii=False) + '\n{"q": "c"}\n', newline="")
    assert rows(path) == [{"q": text}, {"q": "c"}]


def test_a_byte_order_mark_carriage_returns_and_empty_lines_are_no_rows(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \r\n{"a": 2}')
    assert list(read_text_rows(path)) == [(1, {"a": 1}), (4, {"a": 2})]


def test_compressed_files_are_read_as_they_are(tmp_path):
    import pyarrow

    text = b'{"a": "\xc3\xa4"}\n{"a": "b"}\n'
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    with pyarrow.output_stream(str(tmp_path / "a.jsonl.zst"), compression="zstd") as file:
        file.write(text)
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        assert rows(tmp_path / name) == [{"a": "ä"}, {"a": "b"}]
        assert len(read_rows(str(tmp_path / name))) == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[{"a": 1},\n {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ('{"data": [{"a": 1}], "version": 2}', [{"a": 1}]),
        ('{\n"rows": [\n{"a": 1}]}', [{"a": 1}]),
        ("[]", []),
    ],
)
def test_a_json_file_is_a_list_or_lines(tmp_path, text, found):
    (tmp_path / "a.json").write_text(text)
    assert rows(tmp_path / "a.json") == found


def test_a_json_file_of_one_line_is_one_row(tmp_path):
    (tmp_path / "a.json").write_text('{"question": "q", "answer": "a"}')
    assert rows(tmp_path / "a.json") == [{"question": "q", "answer": "a"}]


def test_cells_of_csv_are_texts_and_empty_ones_are_absent(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfid,question,answer\r\n007,"two\nlines, ""said""",NA\r\n8,q,\r\n')
    assert rows(path) == [
        {"id": "007", "question": 'two\nlines, "said"', "answer": "NA"},
        {"id": "8", "question": "q"},
    ]
    (tmp_path / "a.tsv").write_text("a\tb\n1,5\t2\n")
    assert rows(tmp_path / "a.tsv") == [{"a": "1,5", "b": "2"}]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', r"a\.jsonl, line 2: no JSON: "),
        ("a.jsonl", '{"a": 1}\n[1]\n', r"a\.jsonl, line 2: must be an object, got list"),
        ("a.json", '[{"a": 1}, 5]', r"a\.json, row 2: must be an object, got int"),
        (
            "a.json",
            '{"a": [1], "b": [2]}',
            r"a\.json: must hold a list of objects, .* got an object with 'a', 'b'",
        ),
        ("a.json", "5", r"a\.json: must hold a list of objects, got int"),
        ("a.csv", "a,b\n1,2\n3\n", r"a\.csv, line 3: has 1 cells; expected 2: a, b"),
        ("a.csv", "a,a\n1,2\n", r"a\.csv, line 1: must name each column once, got 'a, a'"),
        ("a.csv", 'a,b\n1,"2\n', r"a\.csv, line \d: no CSV: unexpected end of data"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        rows(tmp_path / name)
    # The same through the library that keeps the rows.
    with pytest.raises(InputError, match=message):
        read_rows(str(tmp_path / name))


def test_files_in_other_encodings_and_broken_archives_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"a": "ä"}\n'.encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.jsonl, line 1: no JSON: is not UTF-8"):
        rows(tmp_path / "a.jsonl")
    (tmp_path / "a.csv").write_bytes("a\nä\n".encode("latin-1"))
    with pytest.raises(
        InputError, match=r"a\.csv: is not UTF-8: line 2, near 'ä'; save it as UTF-8, such as by iconv"
    ):
        rows(tmp_path / "a.csv")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}')[:-4])
    with pytest.raises(ConfigError, match=r"a\.jsonl\.gz: cannot be read: damaged"):
        rows(tmp_path / "a.jsonl.gz")


def test_a_row_is_named_by_its_line_or_its_number_in_a_list():
    assert where("a/b.jsonl", 3) == "a/b.jsonl, line 3"
    assert where("a/b.json", 3) == "a/b.json, row 3"
