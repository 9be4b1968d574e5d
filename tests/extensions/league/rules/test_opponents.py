"""A population of opponents: its members, what engines hold of it, and who is dealt, on numbers worked out by hand."""

from collections import Counter

import pytest

from asyncrl.extensions.league.opponent import NEWEST
from asyncrl.extensions.league.rules.opponents import Population, Record, score, weights_of

POPULATION = Population("prioritised", every=2, size=3, self_play=0.5)


@pytest.mark.parametrize(
    ("version", "members"), [(0, []), (1, [0]), (2, [0]), (3, [0, 2]), (5, [0, 2, 4]), (7, [2, 4, 6])]
)
def test_members_are_the_newest_of_every_second_version_before_the_present_one(version, members):
    assert POPULATION.members(version) == members


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
def test_engines_hold_what_any_group_that_is_not_overdue_was_dealt(max_staleness):
    for served in range(1, 30):
        held = POPULATION.served(served, max_staleness)
        assert len(held) <= POPULATION.most_served(max_staleness)
        # Engines are one version ahead of the ledger while it is published.
        for admitted in range(max(0, served - 1 - max_staleness), served + 1):
            assert set(POPULATION.members(admitted)) <= set(held)


def test_a_member_is_weighted_by_how_seldom_it_is_beaten():
    rates = {0: 1.0, 2: 0.75}
    assert weights_of("prioritised", [0, 2, 4], rates, 2.0) == [0.0, 0.0625, 0.25]
    assert weights_of("prioritised", [0, 2, 4], rates, 1.0) == [0.0, 0.25, 0.5]
    assert weights_of("uniform", [0, 2, 4], rates, 2.0) == [1.0, 1.0, 1.0]
    assert weights_of("prioritised", [0], rates, 2.0) == [1.0]


def test_opponents_are_dealt_by_their_weights_and_sides_evenly():
    rates = {0: 1.0, 2: 0.75}
    dealt = [POPULATION.deal(seq, 5, rates) for seq in range(4000)]
    members = Counter(None if one is None else one.version for one in dealt)
    # Half of the groups are self-play, and the rest goes 0 : 1 : 4.
    assert members[0] == 0
    assert members[None] == pytest.approx(2000, abs=130)
    assert members[2] == pytest.approx(400, abs=80)
    assert members[4] == pytest.approx(1600, abs=130)
    assert sum(one.main for one in dealt if one) == pytest.approx(1000, abs=100)
    assert dealt == [POPULATION.deal(seq, 5, rates) for seq in range(4000)]
    assert POPULATION.deal(0, 0, rates) is None


def test_a_draw_counts_half_and_earlier_games_fade():
    assert score([1.0, 0.5, 0.0, -1.0]) == 2.5
    assert Record().win_rate == 0.5
    after = Record().after(4.0, 4)
    # 0.9 * 1 + 4 points of 0.9 * 2 + 4 games.
    assert after.win_rate == pytest.approx(4.9 / 5.8)
    assert after.after(0.0, 0) == after


LEAGUE = Population("prioritised", every=2, size=2, self_play=0.5, exploiter="rival")


def test_an_exploiter_plays_a_quarter_of_the_groups_against_the_newest_version():
    dealt = [LEAGUE.deal(seq, 5, {}) for seq in range(4000)]
    games = [one for one in dealt if one is not None and one.key == "rival"]
    assert len(games) == pytest.approx(1000, abs=110)
    assert {(one.version, one.policy, one.against) for one in games} == {(NEWEST, "rival", None)}
    assert sum(one.main for one in games) == pytest.approx(500, abs=70)
    # At version 0 there is nobody else.
    assert {one.key for one in (LEAGUE.deal(seq, 0, {}) for seq in range(100)) if one} == {"rival"}


def test_an_exploiter_that_loses_nearly_always_meets_past_versions_in_half_of_its_groups():
    # Its win rate is 1/20 against the newest version, 1/2 against version 2 and 1/10 against version 4.
    rates = {"rival": 0.95, "rival:2": 0.5, "rival:4": 0.9}
    dealt = Counter(one.key for one in (LEAGUE.deal(seq, 5, rates) for seq in range(8000)) if one)
    assert dealt["rival"] == pytest.approx(1000, abs=120)
    # 0.25 to 0.09.
    assert dealt["rival:2"] == pytest.approx(735, abs=100)
    assert dealt["rival:4"] == pytest.approx(265, abs=70)
    assert weights_of("variance", ["rival:2", "rival:4"], rates, 2.0) == pytest.approx([0.25, 0.09])
    often_enough = [LEAGUE.deal(seq, 5, {"rival": 0.89}) for seq in range(1000)]
    assert {one.key for one in often_enough if one and one.version == NEWEST} == {"rival"}


def test_the_newest_copies_of_an_exploiter_are_members_beside_past_versions():
    rates = {2: 1.0, 4: 1.0, "rival/7": 0.5, "rival/9": 0.75}
    dealt = [LEAGUE.deal(seq, 5, rates, joined=[3, 7, 9]) for seq in range(8000)]
    members = Counter(one.key for one in dealt if one is not None and one.version != NEWEST)
    # Half of three quarters of the groups, as 4 to 1.
    assert members["rival/7"] == pytest.approx(2400, abs=160)
    assert members["rival/9"] == pytest.approx(600, abs=100)
    assert set(members) == {"rival/7", "rival/9"}
