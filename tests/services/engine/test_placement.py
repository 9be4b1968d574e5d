"""Where requests go: stable under join and leave, balanced, mindful of caches, queues and health."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.services.engine.placement import LONG_PROMPT_TOKENS, EngineLoad, Health, hash_order, place

KEYS = [f"prompt {number}".encode() for number in range(2000)]


def idle(count):
    return [EngineLoad(f"http://engine-{number}") for number in range(count)]


def homes(engines):
    return {key: place(key, 10, engines)[0] for key in KEYS}


@pytest.mark.parametrize("health", Health)
def test_a_single_engine_takes_everything_however_it_is(health):
    only = replace(idle(1)[0], health=health, requests=99, waiting=9, kv_usage=1.0)
    assert place(KEYS[0], LONG_PROMPT_TOKENS, [only], home="http://gone") == [only.url]


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_joining_engine_takes_only_its_own_share(count):
    before, after = homes(idle(count)), homes(idle(count + 1))
    moved = [key for key in KEYS if before[key] != after[key]]
    assert len(moved) / len(KEYS) <= 1 / (count + 1) + 0.03
    assert {after[key] for key in moved} == {f"http://engine-{count}"}


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_leaving_engine_moves_only_its_own_keys_and_to_all_others(count):
    engines = idle(count)
    before, after = homes(engines), homes(engines[:-1])
    moved = [key for key in KEYS if before[key] != after[key]]
    assert all(before[key] == engines[-1].url for key in moved)
    shares = Counter(after[key] for key in moved)
    assert len(shares) == count - 1
    assert max(shares.values()) <= 2 * len(moved) / (count - 1) if count > 2 else True


def test_an_empty_new_engine_is_not_stormed():
    """The new one is idle and the others are busy: still only keys that hash to it come."""
    engines = [replace(engine, requests=10) for engine in idle(8)] + [EngineLoad("http://new")]
    taken = sum(place(key, 10, engines)[0] == "http://new" for key in KEYS) / len(KEYS)
    assert taken <= 2 / 9 + 0.03


def test_the_less_loaded_of_the_two_candidates_wins():
    engines = idle(6)
    first, second = hash_order(b"key", [e.url for e in engines])[:2]
    busy = [replace(e, requests=3 if e.url == first else 0) for e in engines]
    assert place(b"key", 10, engines)[0] == first
    assert place(b"key", 10, busy)[0] == second


def test_one_hot_prompt_spreads_beyond_its_two_candidates_before_they_drown():
    requests = Counter({engine.url: 0 for engine in idle(6)})
    for _ in range(120):
        engines = [EngineLoad(url, requests=count) for url, count in requests.items()]
        requests[place(b"hot", 10, engines)[0]] += 1
    assert min(requests.values()) > 0
    assert max(requests.values()) <= 1.25 * 20 + 5


def test_sequential_placement_balances_different_prompts():
    requests = Counter({engine.url: 0 for engine in idle(4)})
    for key in KEYS:
        engines = [EngineLoad(url, requests=count) for url, count in requests.items()]
        requests[place(key, 10, engines)[0]] += 1
    assert max(requests.values()) - min(requests.values()) <= 12


def test_a_conversation_stays_where_its_context_is_cached_even_on_a_busier_engine():
    engines = [EngineLoad("http://home", requests=40, kv_usage=0.9), EngineLoad("http://idle")]
    assert place(b"key", 10, engines, home="http://home")[0] == "http://home"


def test_a_conversation_leaves_an_engine_that_queues_for_want_of_cache_when_another_has_room():
    full = EngineLoad("http://home", requests=40, waiting=9, kv_usage=0.99)
    roomy = EngineLoad("http://other", requests=30, kv_usage=0.5)
    assert place(b"key", 10, [full, roomy], home="http://home")[0] == "http://other"
    tight = replace(roomy, kv_usage=0.9)
    assert place(b"key", 10, [full, tight], home="http://home")[0] == "http://home"


def test_new_conversations_keep_off_a_cache_that_is_spoken_for():
    spoken_for = EngineLoad("http://a", kv_usage=0.5, held=0.5)
    assert place(b"key", 10, [spoken_for, EngineLoad("http://b", requests=3)])[0] == "http://b"


def test_long_prompts_go_where_least_is_waiting_to_be_prefilled():
    engines = [
        EngineLoad("http://a", requests=1, prefill_tokens=9000),
        EngineLoad("http://b", requests=12, prefill_tokens=100),
        EngineLoad("http://c", requests=2, prefill_tokens=4000),
    ]
    assert all(place(key, LONG_PROMPT_TOKENS, engines)[0] == "http://b" for key in KEYS[:50])
    assert {place(key, 10, engines)[0] for key in KEYS[:50]} > {"http://b"}


def test_engines_in_trouble_come_last_and_the_dead_at_the_end():
    engines = [
        EngineLoad("http://dead", Health.DEAD),
        EngineLoad("http://suspect", Health.SUSPECT),
        EngineLoad("http://behind", Health.CATCHING_UP),
        EngineLoad("http://up", requests=50),
    ]
    order = ["http://up", "http://behind", "http://suspect", "http://dead"]
    for home in ("", "http://dead", "http://suspect", "http://gone"):
        assert place(b"key", 10, engines, home) == order


engine_loads = st.lists(
    st.builds(
        EngineLoad,
        url=st.integers(0, 30).map("http://{}".format),
        health=st.sampled_from(Health),
        requests=st.integers(0, 100),
        waiting=st.integers(0, 20),
        prefill_tokens=st.integers(0, 10_000),
        kv_usage=st.floats(0, 1),
        held=st.floats(0, 2),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda e: e.url,
)


@given(engine_loads, st.binary(max_size=8), st.integers(0, 5000), st.data())
def test_every_engine_is_tried_once_healthiest_first_and_the_choice_is_repeatable(engines, key, tokens, data):
    home = data.draw(st.sampled_from(["", *(e.url for e in engines)]))
    order = place(key, tokens, engines, home)
    assert sorted(order) == sorted(e.url for e in engines)
    ranks = [list(Health).index(next(e.health for e in engines if e.url == url)) for url in order]
    assert ranks == sorted(ranks)
    assert order == place(key, tokens, engines[::-1], home)


@given(st.lists(st.text("abcdef", min_size=1), min_size=2, unique=True), st.binary(max_size=8))
def test_taking_an_engine_away_leaves_the_order_of_the_others(urls, key):
    order = hash_order(key, urls)
    assert hash_order(key, urls[1:]) == [url for url in order if url != urls[0]]
