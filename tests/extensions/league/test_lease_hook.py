"""Opponents in the ledger: dealt where tasks are leased, games noted where groups are put, exact after deaths."""

import random
import zlib
from dataclasses import replace
from functools import partial

import pytest

from asyncrl.buffer.leases import seq_of
from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.data.codec import decode_group, lease_from_map, lease_to_map
from asyncrl.errors import InputError
from asyncrl.extensions.league.lease_hook import Opponents, join_opponents
from asyncrl.extensions.league.opponent import Opponent, opponent_extra, opponent_of
from asyncrl.extensions.league.rules.opponents import Population, Record
from asyncrl.types import FailureClass
from tests.buffer.factories import failed_group, group, tasks

POPULATION = Population("prioritised", every=1, size=2, self_play=0.25, power=1.0, seed=3)
PER_STEP = 4


def opened(path=":memory:", population=POPULATION, max_staleness=0):
    settings = LedgerSettings(PER_STEP, max_staleness, 2, drop_no_signal=False)
    hooks = [partial(Opponents, population=population)] if population is not None else []
    book = Ledger(path, settings, now=0.0, hooks=hooks)
    book.add_tasks(tasks(64))
    return book


def played(lease):
    """A group whose rewards follow from the task and the version alone."""
    rng = random.Random(zlib.crc32(f"{lease.task.seed}-{lease.version}".encode()))
    return group(lease, rewards=[rng.choice([-1.0, 0.0, 1.0]) for _ in range(lease.group_size)])


def train(book, steps, order, deaths=frozenset(), reopen=None):
    """Train whole steps, groups finishing in a random order; return the opponent of each trained task."""
    dealt, call = {}, 0
    while book.version < steps:
        held = {}
        while (taken := book.take(book.version, 0.0)).groups is None:
            if call in deaths:
                book = reopen(book)
            call += 1
            while (lease := book.lease("w", 0.0, f"{book.version}-{len(held)}-{call}")) is not None:
                held[lease.id] = lease
            finished = held.pop(order.choice(sorted(held)))
            dealt[finished.task.id] = opponent_of(finished)
            book.put(played(finished))
        assert len([decode_group(body) for body in taken.groups]) == PER_STEP
        book.commit(book.version + 1)
    return book, dealt


def win_rates(book):
    return book._store.rows("SELECT member, points, games FROM win_rates ORDER BY member")


def test_the_policys_wins_against_a_member_enter_at_the_commit():
    always = Population("uniform", every=1, size=1, self_play=0.0)
    book = opened(population=always)
    assert all(opponent_of(book.lease("w", 0.0)) is None for _ in range(PER_STEP))
    book = opened(population=always)
    train(book, 1, random.Random(0))
    held = [book.lease("w", 0.0) for _ in range(PER_STEP)]
    assert {opponent_of(lease).version for lease in held} == {0}
    for lease, rewards in zip(held, [(1, 1), (1, -1), (0, -1), (1, 1)], strict=True):
        book.put(group(lease, rewards=rewards))
    assert book.stats()["opponents_win_rate_mean"] == 0.5
    book.take(1, 0.0)
    book.commit(2)
    # Of 1 in 2 at first, fading by 0.9 before each of 2, 1, 1/2 and 2 points of 2 games.
    points, games = 1.0, 2.0
    for won in (2.0, 1.0, 0.5, 2.0):
        points, games = 0.9 * points + won, 0.9 * games + 2
    assert win_rates(book) == [(0, pytest.approx(points), pytest.approx(games))]
    stats = book.stats()
    # At version 2 the member is version 1, of which nothing is known yet.
    assert (stats["opponents_members"], stats["opponents_win_rate_min"]) == (1, 0.5)


def test_the_opponent_travels_with_the_lease_and_stays_through_a_repeated_call():
    book, _ = train(opened(), 2, random.Random(0))
    held = [book.lease("w", 0.0, f"r{i}") for i in range(PER_STEP)]
    assert any(opponent_of(lease) is not None for lease in held)
    assert [opponent_of(book.lease("w", 0.0, f"r{i}")) for i in range(PER_STEP)] == [
        opponent_of(one) for one in held
    ]
    assert [lease_from_map(lease_to_map(lease)) for lease in held] == held


def test_games_of_failed_episodes_say_nothing():
    book, _ = train(opened(population=Population("uniform", 1, 1, 0.0)), 1, random.Random(0))
    lease = book.lease("w", 0.0)
    book.put(failed_group(lease, [None, FailureClass.AGENT]))
    assert book._store.rows("SELECT points, played FROM games") == [(1.0, 1)]


def test_who_is_dealt_does_not_depend_on_deaths_or_on_who_finishes_first(tmp_path):
    whole, dealt = train(opened(), 8, random.Random(0))
    assert len({one and one.version for one in dealt.values()}) > 4

    def reopen(book):
        book.close()
        return opened(tmp_path / "killed.sqlite")

    for seed in range(2):
        (tmp_path / "killed.sqlite").unlink(missing_ok=True)
        deaths = set(random.Random(seed).sample(range(30), 8))
        killed, again = train(opened(tmp_path / "killed.sqlite"), 8, random.Random(seed + 1), deaths, reopen)
        assert again == dealt
        assert win_rates(killed) == win_rates(whole)
        killed.close()


@pytest.mark.parametrize("checkpoint", [0, 3, 5])
def test_a_trainer_that_returns_to_a_checkpoint_gets_the_same_opponents_and_win_rates(checkpoint):
    whole, dealt = train(opened(), 8, random.Random(0))
    book, _ = train(opened(), 6, random.Random(1))
    book.put(played(book.lease("w", 0.0)))
    book.rollback_to(checkpoint)
    book, again = train(book, 8, random.Random(2))
    assert again == {task: dealt[task] for task in again}
    assert win_rates(book) == win_rates(whole)


def test_a_ledger_without_a_population_deals_nobody_and_counts_nothing():
    book = opened(population=None)
    assert opponent_of(book.lease("w", 0.0)) is None
    assert not any(name.startswith("opponents") for name in book.stats())


LEAGUE = Population("prioritised", every=1, size=2, self_play=0.0, exploiter="rival")


def test_an_exploiters_games_are_counted_apart_and_from_the_beginning_when_a_copy_joins():
    book = opened(population=LEAGUE)
    # The policy wins every game of its own, and of those of the exploiter.
    met = []
    for version in range(2):
        while (lease := book.lease("w", 0.0)) is not None:
            opponent = opponent_of(lease)
            met.append(opponent.key if opponent else None)
            book.put(group(lease, rewards=[1.0, 1.0]))
        book.take(version, 0.0)
        book.commit(version + 1)
    games = met.count("rival")
    assert games >= 1
    record = Record()
    for _ in range(games):
        record = record.after(2.0, 2)
    stats = book.stats()
    assert stats["opponents_exploiters"] == 0
    assert stats["opponents_exploiter_win_rate"] == pytest.approx(1 - record.win_rate)
    join_opponents(book, [4])
    stats = book.stats()
    assert (stats["opponents_exploiters"], stats["opponents_exploiter_win_rate"]) == (1, 0.5)
    # Versions 0 and 1, and the copy.
    assert stats["opponents_members"] == 3
    dealt = map(opponent_of, iter(lambda: book.lease("w", 0.0), None))
    met = {opponent.key for opponent in dealt if opponent}
    assert met and met <= {0, 1, "rival", "rival/4"}


def test_a_game_against_a_past_version_counts_for_the_exploiter_and_trains_nothing():
    book = opened(population=LEAGUE)
    lease = book.lease("w", 0.0)
    with book._store.transaction():
        book._store.execute("DELETE FROM dealt")
        book._store.execute("INSERT INTO dealt VALUES (?, -1, 1, 'rival', 7)", (seq_of(lease.id),))
    silent = group(lease, rewards=[-1.0, 1.0])
    silent = replace(
        silent,
        trajectories=tuple(
            replace(t, loss_mask=t.loss_mask & False, versions=t.versions * 0 - 1, turns=())
            for t in silent.trajectories
        ),
    )
    assert book.put(silent).reason == "too_few_usable"
    assert book._store.rows("SELECT member, points, played FROM games") == [("rival:7", 1.0, 2)]


@pytest.mark.parametrize("population", [None, POPULATION])
def test_only_a_run_with_an_exploiter_has_copies_join(population):
    with pytest.raises(InputError, match="this run has no exploiter"):
        join_opponents(opened(population=population), [1])


@pytest.mark.parametrize(
    "opponent",
    [
        Opponent(3, main=True),
        Opponent(3, main=False, policy="rival"),
        Opponent(-1, main=True, policy="rival"),
        Opponent(-1, main=True, policy="rival", against=2),
    ],
)
def test_every_kind_of_opponent_travels_with_the_lease(opponent):
    lease = replace(opened().lease("w", 0.0), extras=opponent_extra(opponent))
    assert opponent_of(lease_from_map(lease_to_map(lease))) == opponent
