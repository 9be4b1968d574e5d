"""Which tasks are shown examples in their prompts, and which examples."""

from dataclasses import replace

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.curriculum.curricula import factory
from asyncrl.extensions.curriculum.curriculum import Outcome
from asyncrl.extensions.curriculum.seeding import CORPUS, EXAMPLE_CHARACTERS, Seeding, example_of
from asyncrl.types import SEEDED, PlacedImage, Task
from tests.train.factories import trajectory

EMBEDDINGS = ([1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0])
POOL = [Task(f"t{i}", "gridworld", i, data={"embedding": e}) for i, e in enumerate(EMBEDDINGS)]
BARE = [Task(f"t{i}", "gridworld", i) for i in range(4)]


def failed(place):
    return Outcome(place, (0.0, 0.0), (0.0, 0.0))


def solved(place, text=""):
    return Outcome(place, (0.0, 1.0), (0.0, 1.0), example=text or f"way {place}")


def test_a_task_that_failed_is_shown_the_successes_at_the_tasks_nearest_to_it():
    seeding = Seeding(POOL, 2)
    seeding.observe([failed(0), solved(3), solved(2), solved(1)])
    # Cosines with task 0: 0.8, 0.6 and 0 of tasks 1, 2 and 3.
    assert seeding.examples(0) == ("way 1", "way 2")
    assert [seeding.examples(place) for place in (1, 2, 3)] == [()] * 3, "they succeed"


def test_tasks_that_cannot_be_compared_are_shown_the_newest_successes():
    seeding = Seeding(BARE, 2)
    seeding.observe([solved(3), solved(1), failed(0), solved(2)])
    assert seeding.examples(0) == ("way 2", "way 1")
    seeding.observe([solved(3, "a new way")])
    assert seeding.examples(0) == ("a new way", "way 2")


def test_a_task_is_seeded_while_its_newest_group_had_no_success_and_never_with_its_own():
    seeding = Seeding(BARE, 2)
    assert seeding.examples(0) == (), "nothing is known of it"
    seeding.observe([solved(0), solved(1)])
    seeding.observe([failed(0)])
    assert seeding.examples(0) == ("way 1",)
    seeding.observe([Outcome(0, (), ())])
    assert seeding.examples(0) == ("way 1",), "a group without usable episodes says nothing"
    seeding.observe([Outcome(0, (1.0,), (1.0,))])
    assert seeding.examples(0) == ()


def test_the_newest_successes_are_remembered_one_of_each_task():
    many = [Task(f"t{i}", "gridworld", i) for i in range(CORPUS + 3)]
    seeding = Seeding(many, 1)
    seeding.observe([solved(place) for place in range(CORPUS + 2)])
    assert list(seeding.corpus) == list(range(2, CORPUS + 2))
    seeding.observe([solved(2, "again")])
    assert list(seeding.corpus) == [*range(3, CORPUS + 2), 2]


def test_a_state_brings_corpus_and_failures_back():
    seeding, other = Seeding(POOL, 2), Seeding(POOL, 2)
    seeding.observe([failed(0), solved(3), solved(1)])
    other.load_state(seeding.state())
    assert other.examples(0) == seeding.examples(0) == ("way 1", "way 3")
    assert other.state() == seeding.state()


def test_an_example_is_the_transcript_of_a_whole_unseeded_success_that_is_short_enough():
    won = replace(trajectory("t", reward=1.0), conversation="[how]")
    assert example_of([trajectory("t"), won]) == "[how]"
    for unfit in (
        replace(won, reward=0.0),
        replace(won, info={SEEDED: 2}),
        replace(won, conversation=""),
        replace(won, conversation="x" * (EXAMPLE_CHARACTERS + 1)),
        replace(won, extras={"images": (PlacedImage(0, 1, "key", b""),)}),
    ):
        assert example_of([unfit]) == ""
        assert example_of([unfit, won]) == "[how]"


def test_xrpo_proposes_failing_tasks_with_examples_and_the_same_episodes_as_without():
    seeded, plain = (factory("xrpo", settings, 4, 0)(POOL) for settings in ({"seeds": 1}, {}))
    for one in (seeded, plain):
        one.observe([failed(0), solved(1), solved(2)])
    mine, its = seeded.propose(4, 4), plain.propose(4, 4)
    assert {p.place: p.examples for p in mine} == {0: ("way 1",), 1: (), 2: (), 3: ()}
    assert [(p.place, p.rollouts) for p in mine] == [(p.place, p.rollouts) for p in its]
    assert (seeded.keeps_examples, plain.keeps_examples) == (True, False)
    assert factory("xrpo", {"seeds": 1}, 4, 0, turn_slack=1.5)(POOL).keeps_examples
    again = factory("xrpo", {"seeds": 1}, 4, 0)(POOL)
    again.load_state(seeded.state())
    assert again.propose(4, 4) == mine


def test_the_number_of_seeds_is_checked():
    with pytest.raises(ConfigError, match=r"curriculum.settings.seeds: must be from 0 to 8, got 9"):
        factory("xrpo", {"seeds": 9}, 4, 0)
