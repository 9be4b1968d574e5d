"""Suites: read from TOML, their tasks fixed by a digest; those of the package are as they were made."""

from pathlib import Path

import pytest

import asyncrl
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.suite import (
    PACKAGED,
    check_digests,
    known_suites,
    load_suite,
    part_digest,
    part_tasks,
    suite_on,
)

SMALL = """
version = 2
samples = 4
[parts.walk]
env = "gridworld"
tasks = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def suite_of(text):
    Path("small.toml").write_text(text)
    return load_suite("small.toml")


@pytest.mark.parametrize("name", sorted(path.stem for path in PACKAGED.glob("*.toml")))
def test_the_tasks_of_a_packaged_suite_are_those_it_was_made_with(name):
    suite = load_suite(name)
    assert all(part.digest for part in suite.parts.values())
    check_digests(suite, {part: part_tasks(part, suite.parts[part]) for part in suite.parts})


def test_a_suite_of_the_current_folder_wins_over_one_of_the_package():
    Path("suites").mkdir()
    Path("suites/cpu.toml").write_text(SMALL)
    assert load_suite("cpu").version == 2
    assert known_suites()["cpu"] == Path("suites/cpu.toml")


def test_its_tasks_are_the_first_of_the_held_out_split():
    suite = suite_of(SMALL)
    assert (suite.name, suite.samples, suite.temperature) == ("small", 4, 1.0)
    assert [task.seed for task in part_tasks("walk", suite.parts["walk"])] == [1, 3, 5]
    parts = {"walk": {"env": "gridworld", "config": {}}}
    assert list(suite.sittings()) == [("mix", {"parts": parts}, ["walk"])]


def test_tasks_may_come_from_a_file_beside_the_suite():
    Path("tasks.jsonl").write_text('{"id": "a", "seed": 7}\n{"id": "b", "seed": 9}\n')
    suite = suite_of(SMALL.replace("tasks = 3", 'file = "tasks.jsonl"'))
    assert [(task.id, task.seed) for task in part_tasks("walk", suite.parts["walk"])] == [("a", 7), ("b", 9)]


def test_a_digest_changes_with_tasks_settings_and_what_the_environment_shows(monkeypatch):
    part = suite_of(SMALL).parts["walk"]
    tasks = part_tasks("walk", part)
    before = part_digest(part, tasks)
    assert part_digest(part, tasks) == before
    assert part_digest(part, tasks[:2]) != before
    assert part_digest(part.model_copy(update={"config": {"size": 4}}), tasks) != before
    from asyncrl.envs.gridworld.env import Gridworld

    monkeypatch.setattr(Gridworld, "reset", lambda self: [{"role": "user", "content": "another rule"}])
    assert part_digest(part, tasks) != before


def test_tasks_that_are_not_those_of_the_suite_are_refused_with_their_digest():
    suite = suite_of(f'{SMALL}digest = "0123"\n')
    tasks = {"walk": part_tasks("walk", suite.parts["walk"])}
    right = part_digest(suite.parts["walk"], tasks["walk"])
    with pytest.raises(
        ConfigError, match=f"version 2: .* parts.walk: digest {right}, the suite was made with '0123'"
    ):
        check_digests(suite, tasks)
    check_digests(suite_of(f'{SMALL}digest = "{right}"\n'), tasks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "version: Field required"),
        ("version = 1\n[parts]\n", "parts: Dictionary should have at least 1 item"),
        (SMALL.replace("tasks = 3", "tasks = 0"), "tasks: must be above 0 without a file"),
        (f"{SMALL}speed = 1\n", "parts.walk.speed: Extra inputs are not permitted"),
        (SMALL.replace("samples = 4", "samples = 0"), "samples: Input should be greater than or equal to 1"),
        (
            SMALL.replace("gridworld", "gridwrld"),
            "parts.walk.env: unknown environment 'gridwrld'; did you mean",
        ),
        (f"{SMALL}config = {{ sise = 3 }}\n", "parts.walk.config.sise: environment 'gridworld' has no such"),
        (SMALL.replace("walk", '"a b"'), "String should match pattern"),
        (
            SMALL.replace('env = "gridworld"', 'format = "gsm9k"\nfile = "x"'),
            "unknown format 'gsm9k'; allowed: math",
        ),
        (
            SMALL.replace('env = "gridworld"', 'format = "math"'),
            "file: missing; format says how a file is read",
        ),
        (SMALL.replace('env = "gridworld"', ""), "env: give the environment, or the format of a file"),
        (SMALL.replace('"gridworld"', '"agent"'), "parts.walk.env: 'agent' plays its own episodes; name the"),
        (
            SMALL.replace('env = "gridworld"', 'harness = "bash"\nset = "gsm8k"'),
            "env: missing; harness needs an",
        ),
        (f'most_thinking = 3\n{SMALL}harness = "bash"\n', "must be left out with a harness"),
        ("version = ", "cannot be read"),
    ],
)
def test_a_wrong_suite_is_refused_with_key_and_value(text, message):
    with pytest.raises(ConfigError) as refused:
        suite_of(text)
    assert message in str(refused.value)
    assert "small.toml" in str(refused.value)


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=r"no suite 'cpus'; did you mean 'cpu'\? Suites: .*cpu"):
        load_suite("cpus")


def test_more_tasks_than_a_file_has_are_refused():
    Path("tasks.jsonl").write_text('{"id": "a"}\n')
    suite = suite_of(f'{SMALL}file = "tasks.jsonl"\n')
    with pytest.raises(ConfigError, match=r"parts.walk.tasks: 3 asked for, and there are 1"):
        part_tasks("walk", suite.parts["walk"])


def test_a_part_with_an_agent_program_is_played_by_it_and_the_others_in_a_mix():
    more = '[parts.mend]\nenv = "repair"\nharness = "own.toml"\ntasks = 2\nconfig = { level = 1 }\n'
    suite = suite_of(SMALL + more)
    mix, agent = suite.sittings()
    assert (mix[0], set(mix[1]["parts"]), mix[2]) == ("mix", {"walk"}, ["walk"])
    harness = str(Path("own.toml").absolute())
    assert agent == (
        "agent",
        {"harness": harness, "tasks": "repair", "task_config": {"level": 1}},
        ["mend"],
    )
    assert len(part_tasks("mend", suite.parts["mend"])) == 2


@pytest.mark.slow
def test_harbor_folders_and_environments_for_verifiers_are_parts(monkeypatch):
    pytest.importorskip("verifiers", reason="verifiers is not installed")
    folder = Path(asyncrl.__file__).parent / "recipes" / "terminal_grpo" / "tasks"
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "env_adapters")
    suite = suite_of(f"""
        version = 1
        [parts.shell]
        env = "terminal"
        tasks = 1
        config = {{ folder = "{folder}" }}
        [parts.words]
        env = "verifiers"
        tasks = 2
        config = {{ id = "vf-words" }}
    """)
    tasks = {name: part_tasks(name, part) for name, part in suite.parts.items()}
    assert (len(tasks["shell"]), len(tasks["words"])) == (1, 2)
    assert len(part_digest(suite.parts["shell"], tasks["shell"])) == 16


QUESTIONS = """\
{"question": "Ann has 6 eggs and buys 12 more. How many has she?", "answer": "6 + 12 = 18\\n#### 18"}
{"question": "And how many are twice as many?", "answer": "2 * 18 = 36\\n#### 36"}
{"question": "And without six?", "answer": "#### 30"}
"""


def test_a_known_set_brings_its_prompt_and_its_rows_in_their_own_order():
    Path("questions.jsonl").write_text(QUESTIONS)
    suite = suite_of('version = 1\n[parts.words]\nset = "gsm8k"\nfile = "questions.jsonl"\ntasks = 2')
    part = suite.parts["words"]
    tasks = part_tasks("words", part)
    assert part.env == "dataset"
    assert [task.data["answer"] for task in tasks] == ["6 + 12 = 18\n#### 18", "2 * 18 = 36\n#### 36"]
    assert {task.split for task in tasks} == {"heldout"}
    system, user = tasks[0].data["messages"]
    assert "boxed" in system["content"]
    assert user["content"] == "Ann has 6 eggs and buys 12 more. How many has she?"


def test_all_rows_of_a_set_are_played_without_a_limit():
    Path("questions.jsonl").write_text(QUESTIONS)
    for limit, played in ((0, 3), (2, 2), (5, 3)):
        suite = suite_on({"gsm8k": "questions.jsonl"}, limit, 1, 100)
        assert len(part_tasks("gsm8k", suite.parts["gsm8k"])) == played


def test_a_set_with_a_format_has_the_environment_that_judges_it():
    Path("HumanEval.jsonl").write_text(
        '{"task_id": "HumanEval/0", "prompt": "def one():\\n", "entry_point": "one", '
        '"test": "def check(f): assert f() == 1"}\n'
    )
    suite = suite_on({"humaneval": "HumanEval.jsonl"}, 0, 1, 100)
    part = suite.parts["humaneval"]
    assert part.env == "asyncrl.envs.benchmarks.program:Program"
    (task,) = part_tasks("humaneval", part)
    assert "def one():" in str(task.data)


def test_several_sets_are_one_suite():
    Path("gsm8k.jsonl").write_text(QUESTIONS)
    suite = suite_on({"gsm8k": "gsm8k.jsonl", "svamp": ""}, 7, 4, 100)
    assert (suite.name, suite.samples, suite.parts["svamp"].tasks) == ("gsm8k_svamp", 4, 7)
    assert suite.max_model_len > suite.max_tokens_per_turn == 100


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"gsm9k": ""}, "unknown data set 'gsm9k'; did you mean 'gsm8k'"),
        ({"livecodebench": ""}, "'livecodebench' has no held-out rows on the hub; name its file"),
        ({"none": ""}, "names no data set, got 'none'"),
    ],
)
def test_what_cannot_be_played_is_refused(sets, said):
    with pytest.raises(ConfigError, match=said):
        suite_on(sets, 0, 1, 100)


def test_a_part_with_a_set_and_an_environment_is_refused():
    with pytest.raises(ConfigError, match="or the known data set"):
        suite_of('version = 1\n[parts.words]\nset = "gsm8k"\nenv = "dataset"')
