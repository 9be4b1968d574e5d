"""What is kept between commands is known by what it follows from, code included."""

from asyncrl import cache
from asyncrl.algo.presets import known_presets
from asyncrl.cache import cache_file, code_digest
from asyncrl.extensions.planning.remembered import MEASURED
from asyncrl.extensions.table import rows


def test_a_file_is_known_by_its_kind_and_by_what_it_follows_from(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path))
    file = cache_file("plans", "a", ".json")
    assert (file.parent, file.suffix, file) == (
        tmp_path / "plans",
        ".json",
        cache_file("plans", "a", ".json"),
    )
    assert len({file, cache_file("plans", "b", ".json"), cache_file("rows", "a", ".json")}) == 3


def test_a_digest_changes_with_every_module_and_table_and_with_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "PACKAGE", tmp_path)
    (tmp_path / "part").mkdir()

    def digest():
        code_digest.cache_clear()
        return code_digest("part", "alone.py")

    (tmp_path / "alone.py").write_text("a = 1")
    found = [digest()]
    for name in ("part/new.py", "part/table.toml", "alone.py"):
        (tmp_path / name).write_text("changed")
        found.append(digest())
    (tmp_path / "part" / "new.py").rename(tmp_path / "part" / "other.py")
    found.append(digest())
    assert len(set(found)) == 5
    (tmp_path / "part" / "notes.md").write_text("a note")
    (tmp_path / "elsewhere.py").write_text("b = 1")
    assert digest() == found[-1]
    code_digest.cache_clear()


def test_measurements_of_memory_depend_on_the_parts_of_every_preset():
    assert known_presets()
    paths = [row.path for row in rows("algo_parts")]
    assert paths
    assert {path.split(".")[1] for path in paths} <= set(MEASURED)
