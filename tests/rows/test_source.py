"""One reader for every kind of source: rows as they are published, known by ids that stay."""

import datetime
import json

import datasets
import pytest

from asyncrl.config_sections import DataSource
from asyncrl.errors import ConfigError, InputError
from asyncrl.rows.source import is_local, read_rows

ROWS = [
    {"question": "When?", "answer": "2020-01-01", "n": 123456789012345678901234567890, "more": {"x": 1}},
    {"question": "How many?", "answer": 5, "n": 1, "more": {"y": [1, None]}},
    {"question": "Which?", "answer": ["a", "b"], "n": 2.0, "more": None},
]
"""Types that a table would change: a text like a date, a long integer, a field of several types."""


def written(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_a_text_file_are_exactly_what_is_written(tmp_path):
    found = read_rows(written(tmp_path / "a.jsonl"))
    assert len(found) == 3
    assert (
        [found[i] for i in range(3)]
        == list(found)
        == [*ROWS[:2], {"question": "Which?", "answer": ["a", "b"], "n": 2.0}]
    )
    assert type(found[0]["n"]) is int
    assert type(found[2]["n"]) is float
    assert found.columns == ["question", "answer", "n", "more"]
    with pytest.raises(IndexError, match="row 3 of 3"):
        found[3]


def test_a_row_is_known_by_file_and_place_and_errors_name_its_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n')
    found = read_rows(str(path))
    assert [found.row_id(i) for i in range(2)] == ["a.jsonl:0", "a.jsonl:1"]
    assert found.where(1) == f"{path}, line 3"


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = tmp_path / "a.jsonl"
    assert read_rows(written(path, [{"a": 1}]))[0] == {"a": 1}
    assert read_rows(written(path, [{"a": 22}]))[0] == {"a": 22}


def test_tables_are_read_with_null_as_absent_and_plain_values(tmp_path):
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    day = datetime.datetime(2020, 1, 2, 3, 4)
    rows = [
        {"q": "a", "x": None, "more": {"k": 1, "l": None}, "day": day},
        {"q": "b", "x": 2, "more": {"k": None, "l": "z"}, "day": day},
    ]
    table = datasets.Dataset.from_list(rows)
    plain = [
        {"q": "a", "more": {"k": 1}, "day": day.isoformat()},
        {"q": "b", "x": 2, "more": {"l": "z"}, "day": day.isoformat()},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    table.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": table, "test": table.select([1])}).save_to_disk(str(tmp_path / "splits"))
    arrow = next((tmp_path / "saved").glob("*.arrow"))
    for source in (tmp_path / "a.parquet", tmp_path / "saved", tmp_path / "splits", arrow):
        found = read_rows(str(source))
        assert list(found) == plain, source
        assert json.loads(json.dumps(found[0])) == plain[0]
        assert found.columns == ["q", "x", "more", "day"]
    assert read_rows(str(tmp_path / "a.parquet")).row_id(1) == "a.parquet:1"
    assert read_rows(str(tmp_path / "a.parquet")).where(1) == f"{tmp_path / 'a.parquet'}, row 2"
    test = read_rows(DataSource(path=str(tmp_path / "splits"), split="test"))
    assert list(test) == plain[1:]
    assert test.row_id(0) == "splits/test:0"
    with pytest.raises(ConfigError, match="has no split 'dev'; it has train, test"):
        read_rows(str(tmp_path / "splits"), split="dev")


def test_what_says_nothing_of_a_file_or_folder_is_refused(tmp_path):
    import datasets

    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n')
    datasets.Dataset.from_list([{"a": 1}]).save_to_disk(str(tmp_path / "saved"))
    for given, message in (
        (
            {"path": str(file), "split": "test"},
            r"data\.train: split='test': '.*a\.jsonl' is one file, which has no",
        ),
        (
            {"path": str(file), "config": "main"},
            r"data\.train: config='main' is of a data set on the hub, and",
        ),
        (
            {"path": str(tmp_path), "revision": "v1"},
            r"data\.train: revision='v1' is of a data set on the hub",
        ),
        (
            {"path": str(tmp_path / "saved"), "split": "test"},
            r"saved was saved without splits, and has no 'test'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            read_rows(DataSource(**given))
    # A split that nobody named is that of its use.
    assert [len(read_rows(str(path), split="test")) for path in (file, tmp_path / "saved")] == [1, 1]


def test_an_image_is_its_file(tmp_path):
    import base64

    import datasets
    from PIL import Image

    image = Image.new("RGB", (4, 3), "red")
    features = datasets.Features(picture=datasets.Image(), several=datasets.List(datasets.Image()))
    table = datasets.Dataset.from_list([{"picture": image, "several": [image, image]}], features=features)
    table.save_to_disk(str(tmp_path / "saved"))
    row = read_rows(str(tmp_path / "saved"))[0]
    assert base64.b64decode(row["picture"]["bytes"]).startswith(b"\x89PNG")
    assert len(row["several"]) == 2


def test_the_files_of_a_folder_are_read_one_after_the_other(tmp_path):
    written(tmp_path / "train-1.jsonl", [{"a": 1}, {"a": 2}])
    written(tmp_path / "train-2.jsonl", [{"a": 3}])
    written(tmp_path / "test.jsonl", [{"a": 4}])
    (tmp_path / "README.md").write_text("no rows")
    assert [row["a"] for row in read_rows(str(tmp_path), split="train")] == [1, 2, 3]
    assert [row["a"] for row in read_rows(DataSource(path=str(tmp_path), split="test"))] == [4]
    assert [row["a"] for row in read_rows(str(tmp_path), split="validation")] == [4, 1, 2, 3]
    with pytest.raises(ConfigError, match="holds no file of the split 'validation' to read"):
        read_rows(DataSource(path=str(tmp_path), split="validation"))
    found = read_rows(str(tmp_path), split="train")
    assert (found.row_id(2), found[2]) == ("train-2.jsonl:0", {"a": 3})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.jsonl", "data.train: there is no file or folder 'none.jsonl'; expected a file"),
        ("./none", "data.train: there is no file or folder './none'"),
        ("a/b/c", "data.train: there is no file or folder 'a/b/c'"),
        ("a.jsonl,b.jsonl", r'several are a list, \["a\.jsonl", "b\.jsonl"\], or a pattern'),
        ("none-*.parquet", r"data\.train: no file matches 'none-\*\.parquet'"),
        ("a.xlsx", r"cannot be read as \.xlsx; expected: \.jsonl"),
        ("noend", "cannot be read as a file without suffix"),
        ("empty", "holds no file to read"),
    ],
)
def test_a_source_that_is_not_there_or_of_no_kind_is_refused_by_its_key(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.xlsx").write_text("")
    (tmp_path / "noend").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=message):
        read_rows(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.parquet", "no parquet", r"a\.parquet: cannot be read: Arrow"),
        ("a.arrow", "no arrow", r"a\.arrow: cannot be read: Arrow"),
        ("a.jsonl", "\n\n", r"a\.jsonl: holds no row"),
    ],
)
def test_a_file_that_is_broken_or_empty_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_rows(str(tmp_path / name))


def test_names_of_the_hub_are_told_from_files():
    assert not any(map(is_local, ["gsm8k", "openai/gsm8k", "a-b/c.d_e"]))
    assert all(map(is_local, ["a.jsonl", "x/a.parquet", "/x", "./x", "~/x", "a/b/c", "a b"]))


def test_a_pattern_stands_for_the_files_that_match_it_in_the_order_of_their_names(tmp_path):
    for name in ("b-1.jsonl", "a-0.jsonl", "a-1.jsonl"):
        written(tmp_path / name, [{"question": name}])
    found = read_rows(str(tmp_path / "a-*.jsonl"))
    assert [(found.row_id(i), found[i]["question"]) for i in range(len(found))] == [
        ("a-0.jsonl:0", "a-0.jsonl"),
        ("a-1.jsonl:0", "a-1.jsonl"),
    ]
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "rows.jsonl", [{"question": name}])
    found = read_rows(str(tmp_path / "*" / "rows.jsonl"))
    # Files of one name are told apart.
    assert found.row_id(0) != found.row_id(1)


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    assert len(read_rows(written(tmp_path / "rows [old].jsonl"))) == 3


def test_the_first_rows_of_files_are_those_of_the_first_files_by_the_same_ids(tmp_path):
    for name, number in (("a.jsonl", 3), ("b.jsonl", 3), ("c.jsonl", 3)):
        (tmp_path / name).write_text("".join(f'{{"x": "{name} {n}"}}\n' for n in range(number)))
    whole = read_rows(str(tmp_path))
    rows = read_rows(DataSource(path=str(tmp_path), first=4))
    assert [row["x"] for row in rows] == ["a.jsonl 0", "a.jsonl 1", "a.jsonl 2", "b.jsonl 0"]
    assert [rows.row_id(i) for i in range(4)] == [whole.row_id(i) for i in range(4)]
    assert rows.where(3) == whole.where(3)
    assert rows.fingerprint != whole.fingerprint
    assert len(read_rows(DataSource(path=str(tmp_path), first=100))) == 9


def test_of_a_saved_folder_one_split_is_read_and_an_empty_one_is_named(tmp_path):
    rows = datasets.Dataset.from_list([{"question": "q"}, {"question": "r"}])
    datasets.DatasetDict({"train": rows, "test": rows.select([])}).save_to_disk(str(tmp_path / "saved"))
    assert len(read_rows(str(tmp_path / "saved"), split="train")) == 2
    with pytest.raises(InputError, match=r"data\.heldout: .*saved/test: holds no row"):
        read_rows(str(tmp_path / "saved"), split="test", key="data.heldout")
    with pytest.raises(
        ConfigError, match=r"it has train, test: name one by \{ path = .saved., split = .train. \}"
    ):
        read_rows(DataSource(path=str(tmp_path / "saved"), split="dev"))
