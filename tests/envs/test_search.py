"""Search: the world, the questions, what BM25 finds, and how answers are compared."""

import asyncio
import json
import random

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.search.env import Search
from asyncrl.envs.search.index import Index
from asyncrl.envs.search.questions import make_question
from asyncrl.envs.search.reward import exact_match, extract, f1
from asyncrl.envs.search.world import RELATIONS, Document, make_world
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task


def opened(seed=0, data=None, **config):
    env = Search(Task("t", "search", seed, data=data or {}), **config)
    return env, asyncio.run(env.reset())


def call(name, **arguments):
    return Action("", (ToolCall("call-0", name, arguments),))


def step(env, action):
    return asyncio.run(env.step(action))


def test_every_fact_of_the_world_stands_in_its_subjects_document():
    world = make_world(3, 80)
    texts = {d.title: d.text for d in world.documents}
    assert set(texts) == set(world.kinds)
    for (entity, relation), value in world.facts.items():
        assert entity in texts[entity] and value in texts[entity], relation
    assert len(world.facts) == sum(len(RELATIONS[kind]) for kind in world.kinds.values())


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_the_answer_is_what_the_chain_of_facts_leads_to(hops):
    world = make_world(0, 80)
    for seed in range(40):
        question = make_question(world, hops, random.Random(seed))
        assert len(question.path) == hops
        entity = question.path[0][0]
        for at, relation in question.path:
            assert at == entity
            entity = world.facts[entity, relation]
        assert question.answers == (entity,)
        assert question.text.endswith(f" of {question.path[0][0]}?")


def test_a_world_for_each_task_shares_no_document_with_another_task():
    first, again, other = (opened(seed, world=-1, size=40)[0] for seed in (2, 2, 4))
    titles = [{d.title for d in env.index.documents} for env in (first, again, other)]
    assert titles[0] == titles[1] and first.question == again.question
    assert titles[0].isdisjoint(titles[2])
    assert titles[0].isdisjoint(d.title for d in opened(2, size=40)[0].index.documents)


def test_the_question_does_not_hold_its_answer():
    for seed in range(100):
        env, messages = opened(seed, level=2, size=80)
        assert not any(answer in messages[1]["content"] for answer in env.question.answers)


def test_rare_words_and_more_of_them_rank_a_document_higher():
    documents = [
        Document("one", "red apple"),
        Document("two", "red pear"),
        Document("three", "red brick wall"),
    ]
    index = Index(documents)
    assert index.search("pear", 3) == [documents[1]]
    assert index.search("red apple", 1) == [documents[0]]
    assert index.search("granite", 3) == index.search("", 3) == index.search("the of", 3) == []
    assert {d.title for d in index.search("red", 9)} == {"one", "two", "three"}


def test_tools_show_titles_then_documents_and_answer_mistakes():
    env, _ = opened(level=1)
    entity = env.question.path[0][0]
    found = step(env, call("search", query=entity)).messages[0]["content"]
    assert found.splitlines()[0].startswith(f"{entity}: ")
    assert env.question.answers[0] in step(env, call("open", title=entity.upper())).messages[0]["content"]
    env, _ = opened(level=3)
    for action, expected in [
        (call("search", query="xyzzy"), "nothing found"),
        (call("open", title=""), "error: there is no document ''"),
        (call("open", title="nowhere"), "error: there is no document 'nowhere'"),
        (call("search", query="x" * 501), "error: a query has at most 500 characters"),
        (call("search", text="x"), "error: search: argument 'query' is missing"),
    ]:
        assert step(env, action).messages[0]["content"] == expected


def test_a_search_shows_as_many_titles_as_configured():
    env, _ = opened(results=5)
    assert len(step(env, call("search", query="married born")).messages[0]["content"].splitlines()) == 5


def test_the_last_turn_ends_the_episode_without_searching():
    env, _ = opened(level=1, max_turns=1)
    last = step(env, call("search", query="x"))
    assert (last.done, last.success, last.reward, last.messages) == (True, False, 0.0, [])


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "overlap"),
    [
        ("The Last Fisu.", "last fisu", 1.0, 1.0),
        ("Fisu", "The Last Fisu", 0.0, 2 / 3),
        ("Last Fisu or Nasil", "The Last Fisu", 0.0, 2 * 2 / (4 + 2)),
        ("1743", "1743", 1.0, 1.0),
        ("1742", "1743", 0.0, 0.0),
        ("", "x", 0.0, 0.0),
    ],
)
def test_answers_are_compared_as_squad_compares_them(answer, gold, exact, overlap):
    assert exact_match(answer, ["something else", gold]) == exact
    assert f1(answer, ["something else", gold]) == pytest.approx(overlap)


def test_the_answer_is_taken_from_its_marker_or_the_last_line():
    assert extract("I looked.\nAnswer: Nasil\n") == "Nasil"
    assert extract("the answer is 1743") == "1743"
    assert extract("first\nsecond\n\n") == "second"
    assert extract(" ") == ""


def test_f1_can_be_the_reward():
    env, _ = opened(4, level=1, grade="f1")
    partial = step(env, Action(f"{env.question.answers[0]} Extra"))
    assert partial.success is False
    assert 0 < partial.reward < 1 and partial.reward == partial.components["f1"]


def test_a_corpus_and_questions_of_ones_own(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"title": "Moon", "text": "It circles the Earth. It is grey."}) + "\n")
    data = {"question": "What circles the Earth?", "answers": ["Moon", "the Moon"]}
    env, messages = opened(data=data, corpus=str(path))
    assert messages[1]["content"] == data["question"]
    assert step(env, call("search", query="Earth")).messages[0]["content"] == "Moon: It circles the Earth."
    assert step(env, Action("The moon")).reward == 1.0


@pytest.mark.parametrize("key", [{"golden_answers": ["Moon"]}, {"answer": "Moon"}])
def test_answers_of_other_data_sets_are_read_under_their_names(tmp_path, key):
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"title": "Moon", "text": "It circles the Earth."}) + "\n")
    env, _ = opened(data={"question": "What circles the Earth?", **key}, corpus=str(path))
    assert env.question.answers == ("Moon",)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "holds no document"), ("\n{}", "line 2: must be an object with title and text"), ("x", "line 1")],
)
def test_a_broken_corpus_is_refused_by_line(tmp_path, content, message):
    path = tmp_path / "corpus.jsonl"
    path.write_text(content)
    with pytest.raises((ConfigError, InputError), match=message):
        opened(data={"question": "?", "answers": ["x"]}, corpus=str(path))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"level": 4}, "level: must be one of 1, 2, 3"),
        ({"size": 3}, "size: must be an integer from 40"),
        ({"grade": "judge"}, "grade: must be one of exact, f1, got 'judge'"),
        ({"corpus": "none.jsonl"}, "needs data with a question"),
    ],
)
def test_a_wrong_configuration_is_refused_with_what_is_allowed(config, message):
    with pytest.raises(ValueError, match=message):
        Search(Task("t", "search", 0), **config)


def test_the_expert_reads_its_answer_from_what_it_was_shown():
    env, messages = opened(8, level=3)
    for _ in range(env.max_turns):
        message = env.oracle(messages)
        answer = step(env, to_action(message))
        if answer.done:
            break
        messages += [message, *answer.messages]
    assert answer.reward == 1.0
    assert message["content"] in messages[-1]["content"]


def test_it_passes_the_environment_check():
    assert [f for f in check_env("search") if not f.ok] == []
