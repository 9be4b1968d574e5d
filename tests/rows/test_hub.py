"""Data sets of a hub: by name, configuration, split and revision, private ones, a busy hub, and none at all.

The hub is a stand-in on this machine; the client is the real one, in a process of its own, since it reads the address
of the hub when it is imported.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.rows.hub_server import TOKEN, Hub

pytestmark = pytest.mark.slow

ASK = """
import json, sys
from asyncrl.config_sections import DataSource
from asyncrl.errors import ConfigError, InputError
from asyncrl.rows.source import read_rows
for given in json.loads(sys.argv[1]):
    try:
        rows = read_rows(DataSource(**given))
        print(json.dumps([rows[0], len(rows), rows.row_id(0)]))
    except (ConfigError, InputError) as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def rows_of(words, number):
    return "".join(json.dumps({"question": f"{words} {n}?", "answer": n}) + "\n" for n in range(number))


@pytest.fixture
def hub(tmp_path):
    folder = tmp_path / "hub"
    files = {
        "org/sums/main/train.jsonl": rows_of("sum", 4),
        "org/sums/main/test.jsonl": rows_of("test", 2),
        "org/sums/v2/train.jsonl": rows_of("newer", 5),
        "org/secret/main/train.jsonl": rows_of("secret", 3),
        "org/levels/main/easy/train.jsonl": rows_of("easy", 1),
        "org/levels/main/hard/train.jsonl": rows_of("hard", 2),
        "org/levels/main/README.md": "---\nconfigs:\n- config_name: easy\n  data_files: easy/train.jsonl\n"
        "- config_name: hard\n  data_files: hard/train.jsonl\n---\n",
        "org/broken/main/train.jsonl": '{"question": "a"}\n{"question\n',
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    made = Hub(folder, private=("org/secret",))
    yield made
    made.close()


@pytest.fixture
def ask(hub, tmp_path):
    """Return what reads sources of the hub in a process of its own, and returns first row, number and id, or error."""

    def asked(*sources, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        ran = subprocess.run(
            [sys.executable, "-c", ASK, json.dumps(sources)],
            env=kept | own | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    return asked


def test_a_split_of_a_data_set_is_read_by_name_and_by_revision(ask, hub):
    train, test, newer = ask(
        {"path": "org/sums"}, {"path": "org/sums", "split": "test"}, {"path": "org/sums", "revision": "v2"}
    )
    assert train == [{"question": "sum 0?", "answer": 0}, 4, "org/sums/train:0"]
    assert test == [{"question": "test 0?", "answer": 0}, 2, "org/sums/test:0"]
    assert newer[:2] == [{"question": "newer 0?", "answer": 0}, 5]
    by_commit = ask({"path": "org/sums", "revision": hub.commit("org/sums", "v2")})
    assert by_commit[0][1] == 5


def test_one_of_several_configurations_is_read_and_which_there_are_is_said(ask):
    hard, unsaid, unknown = ask(
        {"path": "org/levels", "config": "hard"},
        {"path": "org/levels"},
        {"path": "org/levels", "config": "medium"},
    )
    assert hard == [{"question": "hard 0?", "answer": 0}, 2, "org/levels/hard/train:0"]
    for error in (unsaid, unknown):
        assert error.startswith("ConfigError: data.train: 'org/levels'")
        assert "easy" in error
        assert "hard" in error


def test_what_is_not_there_or_broken_is_named(ask):
    absent, split, revision, broken = ask(
        {"path": "org/none"},
        {"path": "org/sums", "split": "dev"},
        {"path": "org/sums", "revision": "v9"},
        {"path": "org/broken"},
    )
    assert "neither a file 'org/none' here nor a data set 'org/none' on the hub" in absent
    assert split.startswith("ConfigError: data.train: 'org/sums'")
    assert "dev" in split
    assert "test" in split
    assert revision.startswith("ConfigError: data.train: ")
    assert "v9" in revision
    assert broken.startswith("InputError: data.train: 'org/broken': cannot be read")


def test_a_private_data_set_needs_a_token(ask):
    (refused,) = ask({"path": "org/secret"})
    assert "a private or gated one needs HF_TOKEN" in refused
    (found,) = ask({"path": "org/secret"}, HF_TOKEN=TOKEN)
    assert found[1] == 3


def test_a_busy_hub_is_asked_again(ask, hub):
    hub.fail_next = 2
    (found,) = ask({"path": "org/sums"})
    assert found[1] == 4
    assert hub.fail_next == 0


def test_what_is_in_the_cache_is_read_without_a_hub(ask, hub):
    before = ask({"path": "org/sums"}, {"path": "org/levels", "config": "hard"})
    hub.close()
    after = ask({"path": "org/sums"}, {"path": "org/levels", "config": "hard"}, HF_HUB_OFFLINE="1")
    assert after == before
    (missing,) = ask({"path": "org/other"}, HF_HUB_OFFLINE="1")
    assert missing.startswith("ConfigError: data.train: there is ")
    assert "org/other" in missing


def test_the_first_rows_are_read_without_downloading_the_rest(ask, hub):
    folder = hub.folder / "org/large/main"
    folder.mkdir(parents=True)
    for number in range(6):
        (folder / f"train-0000{number}-of-00006.jsonl").write_text(rows_of(f"part {number},", 100))
    (found,) = ask({"path": "org/large", "first": 150})
    assert found == [{"question": "part 0, 0?", "answer": 0}, 150, "org/large/train:0"]
    # A stream opens the file after the one that it reads.
    assert not any("train-00004" in request or "train-00005" in request for request in hub.requests)
    assert any("train-00001" in request for request in hub.requests)


def test_first_rows_that_were_read_once_need_no_hub_and_those_of_each_revision_are_its_own(ask, hub):
    before = ask({"path": "org/sums", "first": 3}, {"path": "org/sums", "first": 3, "revision": "v2"})
    assert [found[:2] for found in before] == [
        [{"question": "sum 0?", "answer": 0}, 3],
        [{"question": "newer 0?", "answer": 0}, 3],
    ]
    hub.close()
    after = ask({"path": "org/sums", "first": 3}, HF_HUB_OFFLINE="1")
    assert after == before[:1]
    (missing,) = ask({"path": "org/sums", "first": 4}, HF_HUB_OFFLINE="1")
    assert missing.startswith("ConfigError: data.train: there is no file 'org/sums' here")


def test_first_rows_of_what_is_not_there_or_broken_are_refused_as_all_rows_are(ask):
    absent, split, broken, private = ask(
        {"path": "org/none", "first": 2},
        {"path": "org/sums", "split": "dev", "first": 2},
        {"path": "org/broken", "first": 2},
        {"path": "org/secret", "first": 2},
    )
    assert "neither a file 'org/none' here nor a data set 'org/none' on the hub" in absent
    assert split.startswith("ConfigError: data.train: 'org/sums'")
    assert "dev" in split
    assert broken.startswith("InputError: data.train: 'org/broken': cannot be read")
    assert "a private or gated one needs HF_TOKEN" in private
