"""Files of public reports that other readers refuse or change: each row is what is written (docs/reports.md)."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.errors import InputError
from asyncrl.rows.source import read_rows


def lines(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


SCHEMA = "a list of columns: (...), action: string, datetime: timestamp[s], author: string, version: 1.3.4"
TOOLS = [{"name": "add", "parameters": {"a": 1}}, {"name": "say", "parameters": {"text": "x", "loud": True}}]
JSON_LINES = {
    "datasets#6460": [{"text": "a", "metadata": {"len": 1}}, {"text": "b", "metadata": {}}],
    "LlamaFactory#8805": [{"input": {"x": 1}}, {"input": [1, 2]}, {"input": ""}],
    "course#692": [{"q": "a", "closed": None}, {"q": "b", "closed": "2024-03-15T10:00:00Z"}],
    "datasets#3965": [
        {"q": "a", "milestone": None},
        {"q": "b", "milestone": {"due": "2022-03-18", "id": 2**60}},
    ],
    "datasets#7664": [{"id": 1, "body": SCHEMA, "last": None}],
    "FlashRAG#132": [{"q": "a", "title": "1984"}, {"q": "b", "title": 1984}, {"q": "c", "title": 19.84}],
    "datasets#8027": [{"q": "a", "tools": TOOLS}, {"q": "b", "tools": TOOLS[:1]}],
    "long integers": [{"id": 2**63}, {"id": 2**53 + 1}],
    "numbers as texts": [{"answer": "007"}, {"answer": "1e5"}, {"answer": "2024-01-02"}],
}


def present(row):
    return {key: value for key, value in row.items() if value is not None}


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("report", JSON_LINES)
def test_rows_whose_fields_change_their_type_are_read_as_written(tmp_path, report, suffix):
    rows, path = JSON_LINES[report], tmp_path / f"a{suffix}"
    path.write_text(lines(*rows) if suffix == ".jsonl" else json.dumps(rows))
    found = list(read_rows(str(path)))
    assert found == [present(row) for row in rows]
    assert [[type(value) for value in row.values()] for row in found] == [
        [type(value) for value in present(row).values()] for row in rows
    ]


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_is_read_as_a_stream_and_as_a_file(tmp_path, new):
    # Of Polars, and of pandas' Feather: an Arrow file with an index, where `datasets` writes streams.
    table = pa.table({"question": ["a", "b"], "answer": [1, 2]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table)
    assert list(read_rows(str(tmp_path / "a.arrow"))) == table.to_pylist()


def test_files_of_a_folder_need_not_agree_on_types(tmp_path):
    # datasets#7092: a column that is empty in all of the first file.
    (tmp_path / "train-1.jsonl").write_text(lines({"q": "a", "inputs": []}, {"q": "b", "inputs": []}))
    (tmp_path / "train-2.jsonl").write_text(lines({"q": "c", "inputs": [{"id": 1, "src": "x"}]}))
    assert [row["inputs"] for row in read_rows(str(tmp_path))] == [[], [], [{"id": 1, "src": "x"}]]


def test_lists_of_parquet_are_lists(tmp_path):
    # slime#68: pandas gives arrays, which no chat template takes. verl#890: a folder of such files.
    import pyarrow
    import pyarrow.parquet

    prompt = [{"role": "user", "content": "hello"}]
    for name in ("train-a", "train-b"):
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist([{"prompt": prompt, "tags": ["x", "y"]}]), tmp_path / f"{name}.parquet"
        )
    found = list(read_rows(str(tmp_path)))
    assert found == [{"prompt": prompt, "tags": ["x", "y"]}] * 2
    assert type(found[0]["prompt"]) is type(found[0]["tags"]) is list


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_csv_file_as_excel_writes_it_has_its_first_column(tmp_path, newline):
    # inspect_ai#5353
    text = newline.join(["question,answer", '"what is, then, 2+2?",4', '"two\nlines",ä', ""])
    (tmp_path / "a.csv").write_bytes(text.encode("utf-8-sig"))
    assert list(read_rows(str(tmp_path / "a.csv"))) == [
        {"question": "what is, then, 2+2?", "answer": "4"},
        {"question": "two\nlines", "answer": "ä"},
    ]


def test_a_csv_file_in_another_encoding_is_refused_by_name(tmp_path):
    # inspect_ai#5361
    path = tmp_path / "a.csv"
    path.write_bytes("question,answer\nwas heißt das?,ä\n".encode("cp1252"))
    with pytest.raises(InputError, match=r"a\.csv: is not UTF-8"):
        read_rows(str(path))


def test_a_cell_may_be_longer_than_pythons_reader_takes_by_itself(tmp_path):
    (tmp_path / "a.csv").write_text(f"q,a\n{'x' * 200_000},1\n")
    assert len(read_rows(str(tmp_path / "a.csv"))[0]["q"]) == 200_000


LINES = '{"q":"a","answer":"1"}\n{"q":"b","answer":"2"}\n'
BOTH = [{"q": "a", "answer": "1"}, {"q": "b", "answer": "2"}]
SAME = {
    # datasets#8241, and a file that was put together of several.
    "a mark of UTF-8": ("a.jsonl", b"\xef\xbb\xbf" + LINES.encode()),
    "a mark at the second line": ("a.jsonl", LINES.encode().replace(b"\n{", b"\n\xef\xbb\xbf{")),
    "CRLF": ("a.jsonl", LINES.replace("\n", "\r\n").encode()),
    "no newline at the end": ("a.jsonl", LINES.rstrip().encode()),
    "blank lines": ("a.jsonl", b"\n" + LINES.replace("\n", "\n\n  \n").encode()),
    # datasets#1784
    "JSON lines named .json": ("a.json", LINES.encode()),
    "a list named .jsonl": ("a.jsonl", json.dumps(BOTH).encode()),
    "a list over several lines": ("a.jsonl", json.dumps(BOTH, indent=1).encode()),
    "a list in an object": ("a.json", json.dumps({"version": "1", "data": BOTH}).encode()),
    "gzip under another name": ("a.jsonl", gzip.compress(LINES.encode())),
    "gzip twice": ("a.jsonl.gz", gzip.compress(gzip.compress(LINES.encode()))),
    "gzip of several members": ("a.jsonl.gz", b"".join(map(gzip.compress, LINES.encode().splitlines(True)))),
    "a table with the numbers of its rows": ("a.csv", b",q,answer\n0,a,1\n1,b,2\n"),
    "semicolons": ("a.csv", b"q;answer\na;1\nb;2\n"),
    "tabs": ("a.csv", b"q\tanswer\na\t1\nb\t2\n"),
    "Excel's line of the separator": ("a.csv", b"sep=;\r\nq;answer\r\na;1\r\nb;2\r\n"),
    "blanks around names": ("a.csv", b"q , answer\na,1\nb,2\n"),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_rows_in_another_dress_are_the_same_rows(tmp_path, name):
    file, written = SAME[name]
    (tmp_path / file).write_bytes(written)
    assert list(read_rows(str(tmp_path / file))) == BOTH


REFUSED = {
    "a key twice": (
        "a.jsonl",
        b'{"q":"a"}\n{"q":"b","q":"c"}',
        "line 2.*the key 'q' stands in one object twice",
    ),
    "half a pair": ("a.jsonl", b'{"q":"\\ud83d"}', r"line 1.*half of a surrogate pair, \\ud83d"),
    "UTF-16": ("a.jsonl", LINES.encode("utf-16"), "UTF-16; save it as UTF-8"),
    "Latin-1": ("a.jsonl", '{"q":"é"}'.encode("latin1"), "line 1.*is not UTF-8.*byte 6"),
    "a comma at the end": ("a.jsonl", b'{"q":"a",}', "line 1: no JSON"),
    "a comma between lines": ("a.jsonl", b'{"q":"a"},\n{"q":"b"}', "line 1: no JSON"),
    "a line cut short": ("a.jsonl", LINES.encode() + b'{"q":"c', "line 3: no JSON"),
    "a pointer of Git LFS": (
        "a.jsonl",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:a",
        "git lfs pull",
    ),
    "one for Parquet": (
        "a.parquet",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:a",
        "git lfs pull",
    ),
    "one for a table": ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:a", "git lfs pull"),
    "a page that asks to log in": ("a.jsonl", b"<!DOCTYPE html>\n<html>", "is a web page"),
    "columns of pandas": (
        "a.json",
        b'{"q":{"0":"a","1":"b"},"answer":{"0":"1","1":"2"}}',
        "orient='records'",
    ),
    "brackets without end": ("a.jsonl", b'{"q":' + b"[" * 100_000, "line 1.*nested too deeply"),
    "nothing": ("a.jsonl", b"\n\n", "holds no row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_data_that_was_meant_is_refused_by_its_kind(tmp_path, name):
    file, written, told = REFUSED[name]
    (tmp_path / file).write_bytes(written)
    with pytest.raises(InputError, match=told):
        list(read_rows(str(tmp_path / file)))


def test_values_of_parquet_that_json_has_not_are_written_as_text_and_what_is_missing_is_absent(tmp_path):
    import datetime
    import decimal

    import pyarrow
    import pyarrow.parquet

    row = {
        "day": datetime.date(2024, 1, 2),
        "price": decimal.Decimal("1.10"),
        "large": 2**64 - 1,
        "none": None,
        "inner": {"x": None, "y": 1},
    }
    table = pyarrow.Table.from_pylist([row], schema=pyarrow.schema([
        ("day", pyarrow.date32()), ("price", pyarrow.decimal128(5, 2)), ("large", pyarrow.uint64()),
        ("none", pyarrow.string()),
        ("inner", pyarrow.struct([("x", pyarrow.int64()), ("y", pyarrow.int64())])),
    ]))  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert list(read_rows(str(tmp_path / "a.parquet"))) == [
        {"day": "2024-01-02", "price": "1.10", "large": 2**64 - 1, "inner": {"y": 1}}
    ]


def test_a_parquet_file_without_rows_says_so(tmp_path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.table({"q": pyarrow.array([], pyarrow.string())}), tmp_path / "a.parquet"
    )
    with pytest.raises(InputError, match=r"a\.parquet: holds no row"):
        read_rows(str(tmp_path / "a.parquet"))


WRONG_LINES = {
    # opentargets/issues#211, SublimePrettyJson#82
    b'{\n "a": 1\n}\n': "line 1: no JSON: one value goes over several lines, where each line holds one",
    b'{"a": 1}{"a": 2}\n': "line 1: no JSON: it holds more than one value",
    b'{"a": 1}\r{"a": 2}\r': "line 1: no JSON: lines end in CR alone; save them with LF",
    b"{'a': 1}\n": "line 1: no JSON: it is written as Python writes it, with single quotes",
    b'{"a": 1}\n\0\0\0\n': "line 2: no JSON: it holds NUL bytes alone",
    b'{"a": 1}\n{"a":': "line 2: no JSON: Expecting value",
}


@pytest.mark.parametrize("written", WRONG_LINES)
def test_what_is_wrong_with_a_line_is_said_in_words_of_the_file(tmp_path, written):
    path = tmp_path / "a.jsonl"
    path.write_bytes(written)
    with pytest.raises(InputError) as refused:
        list(read_rows(str(path)))
    assert WRONG_LINES[written] in str(refused.value)


def test_csv_whose_lines_end_in_cr_alone_is_read(tmp_path):
    # filesql#285, csv-js#3: one line, and no row.
    path = tmp_path / "a.csv"
    path.write_bytes(b'q,a\r"x",1\ry,2\r')
    assert list(read_rows(str(path))) == [{"q": "x", "a": "1"}, {"q": "y", "a": "2"}]


def test_floats_of_json_lines_stay_floats(tmp_path):
    # datasets#6937: 0.0 and 1.0 became 0 and 1.
    path = tmp_path / "a.jsonl"
    path.write_text(lines({"a": 0.0}, {"a": 1.0}))
    assert [type(row["a"]) for row in read_rows(str(path))] == [float, float]


def test_nested_parquet_in_many_chunks_is_read(tmp_path):
    # rllm#84: "Nested data conversions not implemented for chunked array outputs"
    rows = [{"q": f"q{n}", "tests": [{"input": str(n), "output": [str(n)] * 3}] * 5} for n in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
    assert list(read_rows(str(tmp_path / "a.parquet"))) == rows


def test_a_map_in_parquet_is_refused_by_its_column(tmp_path):
    # datasets#5612: "Arrow type map<string, string> does not have a datasets dtype equivalent"
    table = pa.table({"q": ["x"], "headers": pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(
        InputError, match=r"column 'headers' is a map, which cannot be read; write it as JSON"
    ):
        list(read_rows(str(tmp_path / "a.parquet")))


def test_damaged_parquet_is_refused_by_its_name(tmp_path):
    # MINT-1T#12: "Corrupt snappy compressed data", from deep inside
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"q": ["some text"] * 1000}), path)
    whole = path.read_bytes()
    for damaged in (whole[:-100], whole[:20] + bytes(byte ^ 255 for byte in whole[20:60]) + whole[60:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.parquet: cannot be read"):
            list(read_rows(str(path)))


@pytest.mark.parametrize("saved", ["one", "two"])
def test_what_datasets_saved_to_a_disk_is_read(tmp_path, saved):
    # datasets#7018, datasets#6703, alignment-handbook#53: refused, or its description read as the data
    rows = [{"q": "a", "tests": [{"i": "1"}]}, {"q": "b", "tests": [{"i": "2"}]}]
    data = datasets.Dataset.from_list(rows)
    (data if saved == "one" else datasets.DatasetDict(train=data, test=data)).save_to_disk(tmp_path / "saved")
    assert list(read_rows(str(tmp_path / "saved"))) == rows
