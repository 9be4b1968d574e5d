"""Files of JSON lines are read while another process appends to them."""

from concurrent.futures import ThreadPoolExecutor

from asyncrl.run.json_lines import JsonLines, last_record


def test_lines_that_are_appended_are_read_once_they_are_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path)
    assert lines.refresh() == []
    path.write_text('{"a": 1}\n{"a": ')
    assert lines.refresh() == [{"a": 1}]
    path.write_text('{"a": 1}\n{"a": 2}\ntorn}\n3\n')
    assert lines.refresh() == [{"a": 1}, {"a": 2}]


def test_a_file_that_was_begun_anew_is_read_from_its_start(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path)
    path.write_text('{"a": 1}\n{"a": 2}\n')
    lines.refresh()
    path.write_text('{"a": 3}\n')
    assert lines.refresh() == [{"a": 3}]


def test_threads_that_read_at_once_get_every_record_once(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"a": {i}}}\n' for i in range(20000)))
    lines = JsonLines(path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: len(lines.refresh()), range(8)))
    assert found == [20000] * 8


def test_new_records_are_returned_once_and_all_records_stay(tmp_path):
    path = tmp_path / "lines.jsonl"
    early = JsonLines(path)
    assert early.new() == []
    path.write_text('{"a": 1}\n')
    late = JsonLines(path)
    assert late.new() == [{"a": 1}]
    with path.open("a") as file:
        file.write('{"a": 2}\n{"a')
        file.flush()
        assert (early.new(), late.new()) == ([{"a": 1}, {"a": 2}], [{"a": 2}])
        file.write('": 3}\n')
    assert (early.new(), late.new()) == ([{"a": 3}], [{"a": 3}])
    assert early.refresh() == [{"a": 1}, {"a": 2}, {"a": 3}]
    path.write_text('{"a": 4}\n')
    assert (early.new(), early.new()) == ([{"a": 4}], [])


def test_the_newest_whole_record_is_read_from_the_end_of_a_file(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert last_record(path) is None
    path.write_text('{"a": 0}\n' * 20000 + '{"a": 1}\ntorn}\n{"a": ')
    assert last_record(path) == {"a": 1}
    path.write_text('{"a": ')
    assert last_record(path) is None
