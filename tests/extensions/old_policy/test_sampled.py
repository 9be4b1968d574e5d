"""An engine names each sequence that a version has sampled in once, whoever asked for it."""

import numpy as np
import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.old_policy import sampled
from asyncrl.extensions.old_policy.sampled import (
    SampledSequences,
    Sequence,
    sequences_from_list,
    sequences_to_list,
    without_prefixes,
)


def sequence(*token_ids, start):
    return Sequence(np.array(token_ids, np.int32).tobytes(), ((start, len(token_ids)),))


def plain(found):
    """Return tokens, and which of them were sampled."""
    return [(one.token_ids.tolist(), np.flatnonzero(one.sampled).tolist()) for one in found]


def test_a_turn_that_the_next_one_reads_is_kept_as_part_of_it():
    first, second = sequence(1, 2, 3, start=2), sequence(1, 2, 3, 4, 5, start=4)
    branch, other = sequence(1, 2, 3, 9, start=3), sequence(300, 2, start=1)
    found = plain(without_prefixes([second, other, first, branch]))
    # The one of the two that go on from the first turn which comes first has its tokens, too.
    assert sorted(found) == [([1, 2, 3, 4, 5], [2, 4]), ([1, 2, 3, 9], [3]), ([300, 2], [1])]


def test_equal_sequences_of_two_engines_are_kept_once():
    assert plain(without_prefixes([sequence(1, 2, 3, start=2), sequence(1, 2, 3, start=1)])) == [
        ([1, 2, 3], [1, 2])
    ]


def test_requests_count_from_what_they_had_when_the_version_changed():
    kept = SampledSequences(4)
    kept.end("old", [1, 2, 3], 1)
    kept.renew(5, {"going": 3})
    assert plain(kept.all([("going", [7, 8, 9], 1)])) == []
    kept.end("cancelled", [5, 6], 2)
    assert plain(kept.all([("going", [7, 8, 9, 10], 1), ("new", [4, 6], 1)])) == [
        ([4, 6], [1]),
        ([7, 8, 9, 10], [3]),
    ]
    kept.end("going", [7, 8, 9, 10, 11], 1)
    assert plain(kept.all([])) == [([7, 8, 9, 10, 11], [3, 4])]
    # A trainer that was restarted publishes the same weights again.
    kept.renew(5, {})
    assert (kept.version, plain(kept.all([]))) == (5, [([7, 8, 9, 10, 11], [3, 4])])


def test_what_is_kept_of_ended_requests_does_not_grow_by_each_turn(monkeypatch):
    monkeypatch.setattr(sampled, "SLACK_BYTES", 100)
    kept = SampledSequences(0)
    for turn in range(1, 200):
        kept.end(str(turn), range(2 * turn), 2 * turn - 1)
    assert len(kept.ended) < 20
    assert plain(kept.all([])) == [(list(range(398)), list(range(1, 398, 2)))]


def test_sequences_are_read_as_they_were_written_and_malformed_ones_are_refused():
    found = [sequence(1, 2, 3, start=2), sequence(1 << 20, 5, start=1)]
    assert sequences_from_list(sequences_to_list(found), "s") == found
    for raw, why in (
        ({}, "s must be a list"),
        ([[[], "ab"]], r"s\[0\] must be \[spans, tokens\]"),
        ([[[[1, 2]], b"1234567"]], "must have 4 bytes a token, got 7"),
        ([[[], b""], [[[1, 3]], b"12345678"]], r"s\[1\]: spans must be .* within 1 to 2, got \[1, 3\]"),
        ([[[[0, 1]], b"12345678"]], r"got \[0, 1\]"),
        ([[[[1]], b"12345678"]], r"got \[1\]"),
    ):
        with pytest.raises(InputError, match=why):
            sequences_from_list(raw, "s")
