"""`make test` has the core; a test at length joins it where what it stands on has changed."""

import subprocess
from types import SimpleNamespace

import pytest

from tests import tiers
from tests.tiers import AT_LENGTH, ROOT, SEAMS, at_length, changed_since, stands_on

SLURM = SimpleNamespace(nodeid="tests/extensions/machines/test_slurm.py::test_one", fixturenames=())
PAGE = "tests/docs/test_pages.py::test_every_block_runs_as_printed[{}:3]"


def test_the_core_keeps_units_the_readme_and_the_run_from_end_to_end():
    for test in (
        "tests/train/test_step.py::test_one",
        "tests/test_end_to_end.py::test_one",
        "tests/test_chaos.py::test_one",
        PAGE.format("README.md"),
    ):
        assert stands_on(test, ()) is None
        assert not at_length(SimpleNamespace(nodeid=test, fixturenames=()))


def test_pages_clusters_and_two_ranks_are_left_to_all_tests():
    assert at_length(SLURM)
    words = "tests/docs/test_pages.py::test_settings_named_in_the_text_exist[docs/lora.md]"
    assert not at_length(SimpleNamespace(nodeid=words, fixturenames=()))
    for page in ("docs/lora.md", "docs/tutorial/2-environment.md", "recipes/sql_grpo/README.md"):
        assert at_length(SimpleNamespace(nodeid=PAGE.format(page), fixturenames=()))
    ranks = SimpleNamespace(
        nodeid="tests/train/test_step.py::test_two", fixturenames=("tmp_path", "two_ranks")
    )
    assert at_length(ranks)
    assert not at_length(ranks, {"asyncrl/train/step/step.py"})


def test_a_test_at_length_joins_where_its_code_itself_or_a_seam_has_changed():
    assert at_length(SLURM, {"asyncrl/algo/loss/ppo.py", "README.md"})
    for file in ("asyncrl/extensions/machines/slurm.py", "tests/extensions/machines/test_slurm.py", SEAMS[0]):
        assert not at_length(SLURM, {file})


@pytest.mark.parametrize("start", AT_LENGTH)
def test_what_the_table_names_is_there(start):
    page = start.startswith(("tests/docs/docs/", "tests/docs/recipes/", "tests/docs/envs/"))
    there = start.removeprefix("tests/docs/") if page else start
    assert list(ROOT.glob(there.rstrip("/") + "*"))
    for source in AT_LENGTH[start]:
        assert (ROOT / source).exists(), source


def test_seams_are_there():
    assert [seam for seam in SEAMS if not (ROOT / seam).exists()] == []


def test_what_differs_from_a_commit_is_found_new_files_too(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    git("init", "-q")
    for name in ("same", "edited"):
        (tmp_path / name).write_text("1")
    git("add", "-A")
    git("commit", "-qm", "first")
    (tmp_path / "edited").write_text("2")
    (tmp_path / "new").write_text("1")
    assert changed_since("HEAD") == {"edited", "new"}
    with pytest.raises(ValueError, match="--changed: git does not know 'nowhere'"):
        changed_since("nowhere")
