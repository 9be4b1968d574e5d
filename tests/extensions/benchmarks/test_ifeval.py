"""Instructions of IFEval are judged by lm-eval's own checks, in a Python of its own."""

import asyncio
import json

import pytest

from asyncrl.env.protocol import Action
from asyncrl.env.registry import load_env
from asyncrl.envs.benchmarks.instructions import Instructions, checks_of
from asyncrl.errors import ConfigError, InfrastructureError, InputError
from asyncrl.extensions.benchmarks.importers.records import import_tasks
from asyncrl.extensions.benchmarks.suite import load_suite, part_tasks
from asyncrl.extensions.benchmarks.suite_play import check_suite
from tests.benchmark_env import benchmark_python

pytestmark = pytest.mark.slow
RECORDS = [
    {
        "key": 1000,
        "prompt": "Praise the sea in at least six words and without commas.",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        "kwargs": [{}, {"relation": "at least", "num_words": 6, "num_sentences": None}],
    },
    {
        "key": 1001,
        "prompt": "Answer in JSON.",
        "instruction_id_list": ["detectable_format:json_format"],
        "kwargs": [{}],
    },
    {
        "key": 1002,
        "prompt": "Write two sentences.",
        "instruction_id_list": ["length_constraints:number_sentences"],
        "kwargs": [{"relation": "at least", "num_sentences": 2}],
    },
]

KINDS = [
    ("keywords:existence", {"keywords": ["sea", "salt"]}, "The sea is full of salt.", "The sea is deep."),
    (
        "keywords:frequency",
        {"keyword": "sea", "frequency": 2, "relation": "at least"},
        "The sea, the sea.",
        "The sea.",
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["salt"]}, "The sea is salty.", "The sea has salt."),
    (
        "keywords:letter_frequency",
        {"letter": "e", "let_frequency": 3, "let_relation": "at least"},
        "See the sea.",
        "A sea.",
    ),
    (
        "language:response_language",
        {"language": "de"},
        "Das Meer ist sehr tief und blau und weit.",
        "The sea is very deep and blue and wide.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\nTwo.", "One.\n\nTwo."),
    (
        "length_constraints:number_words",
        {"num_words": 5, "relation": "less than"},
        "The sea is deep.",
        "The sea is deep and blue.",
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "waves"},
        "The sea.\n\nWaves come.",
        "Waves.\n\nThe sea.",
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        "Dear [name], at [place].",
        "Dear [name].",
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. Write.", "Bye."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* One\n* Two", "* One\n* Two\n* Three"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Yes."),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        "*one* and *two*",
        "*one* and two",
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{'a': 1}"),
    ("detectable_format:title", {}, "<<The sea>>\nIt is deep.", "The sea\nIt is deep."),
    ("combination:two_responses", {}, "One.\n******\nTwo.", "One. Two."),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Praise the sea."},
        "Praise the sea. It is deep.",
        "It is deep. Praise the sea.",
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Any other questions?"},
        "It is deep. Any other questions?",
        "Any other questions? It is deep.",
    ),
    (
        "change_case:english_capital",
        {},
        "THE OCEAN IS A VERY BEAUTIFUL PLACE AND I LOVE TO SWIM THERE WITH MY FRIENDS.",
        "The sea is very deep and blue.",
    ),
    ("change_case:english_lowercase", {}, "the sea is very deep and blue.", "The sea is very deep and blue."),
    ("punctuation:no_comma", {}, "Deep and blue.", "Deep, and blue."),
    ("startend:quotation", {}, '"The sea is deep."', '"The sea" is deep.'),
]
"""Each instruction that needs no data of NLTK, its arguments, an answer that follows it, and one that does not."""


@pytest.fixture(scope="module")
def python(pytestconfig):
    return benchmark_python(pytestconfig.cache.mkdir("benchmark-clients"))


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "ifeval.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    yield import_tasks("ifeval", file)
    checks_of.cache_clear()


def judged(task, content, python):
    async def play():
        env = load_env(task.env)(task, python=python)
        assert env.reset() == [{"role": "user", "content": task.data["prompt"]}]
        return await env.step(Action(content))

    return asyncio.run(play())


def test_an_answer_succeeds_if_it_follows_every_instruction(tasks, python):
    sea, answer, _ = tasks
    assert (sea.id, sea.data["tags"]) == ("1000", ["punctuation", "length_constraints"])
    step = judged(sea, "The sea is deep and blue and calm.", python)
    assert (step.done, step.success, step.reward) == (True, True, 1.0)
    step = judged(sea, "The sea, so deep and blue and calm.", python)
    assert (step.success, step.reward) == (False, 0.0)
    assert step.components == {"instructions_strict": 0.5, "instructions_loose": 0.5, "prompt_loose": 0.0}
    assert judged(sea, "Deep.", python).components["instructions_strict"] == 0.5
    assert judged(sea, "", python).components["instructions_strict"] == 0.0
    assert judged(answer, '{"a": 1}', python).success
    # The loose checks forgive a first line.
    step = judged(answer, 'Here it is:\n{"a": 1}', python)
    assert (step.success, step.components["prompt_loose"]) == (False, 1.0)
    # A process that died is started again.
    checks_of(python)._process.kill()
    checks_of(python)._process.wait()
    assert judged(answer, "[]", python).success


def test_every_kind_of_instruction_is_judged_as_lm_eval_does(tmp_path, monkeypatch, python):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "kinds.jsonl"
    records = [
        {"key": n, "prompt": "Praise the sea.", "instruction_id_list": [kind], "kwargs": [arguments]}
        for n, (kind, arguments, _, _) in enumerate(KINDS)
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = {
        kind: [judged(task, answer, python).success for answer in (right, wrong)]
        for task, (kind, _, right, wrong) in zip(import_tasks("ifeval", file), KINDS, strict=True)
    }
    checks_of.cache_clear()
    assert found == {kind: [True, False] for kind in found}
    assert len(found) == 23


def test_instructions_whose_data_is_missing_are_refused_before_anything_is_played(
    tasks, python, tmp_path, monkeypatch
):
    (tmp_path / "words.toml").write_text(
        'version = 1\n[parts.words]\nformat = "ifeval"\nfile = "ifeval.jsonl"\n'
        f"config = {{ python = {json.dumps(python)} }}\n"
    )
    suite = load_suite(str(tmp_path / "words.toml"))
    listed = {"words": part_tasks("words", suite.parts["words"])}
    with pytest.raises(ConfigError) as refused:
        check_suite(suite, listed, {})
    assert str(refused.value).startswith(
        "parts.words: task '1002': length_constraints:number_sentences: its check needs NLTK's data punkt_tab"
    )
    assert "; 1 of 3 tasks have such an instruction" in str(refused.value)
    Instructions.check_tasks(tasks[:2], python)
    # With a user's data, here the smallest there can be, it is judged.
    data = tmp_path / "nltk" / "tokenizers" / "punkt_tab" / "english"
    data.mkdir(parents=True)
    for name in ("collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab"):
        (data / name).touch()
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "nltk"))
    checks_of.cache_clear()
    check_suite(suite, listed, {})
    assert judged(tasks[2], "It rains. It pours.", python).success
    assert not judged(tasks[2], "It rains", python).success


def test_an_instruction_that_lm_eval_does_not_know_is_refused(tasks, python):
    tasks[0].data["instruction_id_list"][0] = "punctuation:no_dots"
    with pytest.raises(InputError, match="punctuation:no_dots: lm-eval has no check of this name"):
        Instructions.check_tasks(tasks, python)


def test_a_python_without_lm_eval_is_named(tasks):
    with pytest.raises(InfrastructureError, match="did not start in /no/such/python: install lm-eval"):
        judged(tasks[0], "x", "/no/such/python")
