"""Files of public reports that other readers refuse or change: each row is what is written (docs/reports.md)."""

import json

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
