"""Tokens are found by their version and all tokens before them."""

import numpy as np

from asyncrl.extensions.old_policy.scored_tokens import ScoredTokens, prefix_hashes


def hashes(*token_ids):
    ids = np.array(token_ids, np.int32)
    return prefix_hashes(ids, np.arange(len(ids)))


def test_a_hash_is_of_all_tokens_up_to_a_place():
    whole = hashes(5, 6, 7, 8)
    np.testing.assert_array_equal(prefix_hashes(np.array([5, 6, 7, 8]), np.array([1, 3])), whole[[1, 3]])
    np.testing.assert_array_equal(hashes(5, 6, 9)[:2], whole[:2])
    assert len({*whole.tolist(), *hashes(6, 5, 7, 8).tolist()}) == 8


def test_known_tokens_have_their_log_probability_and_others_nan():
    kept = ScoredTokens()
    kept.add(3, hashes(5, 6, 7)[1:], np.array([-1.0, -2.0]))
    kept.add(3, hashes(5, 6, 8)[1:], np.array([-9.0, -3.0]))
    kept.add(4, hashes(5, 6)[1:], np.array([-4.0]))
    np.testing.assert_array_equal(kept.find(3, hashes(5, 6, 8)), np.array([np.nan, -1.0, -3.0], np.float32))
    np.testing.assert_array_equal(kept.find(4, hashes(5, 6, 7)), np.array([np.nan, -4.0, np.nan], np.float32))
    assert np.isnan(kept.find(5, hashes(5, 6))).all()
    assert [kept.num_tokens(version) for version in (3, 4, 5)] == [3, 1, 0]


def test_old_versions_are_dropped_and_a_checkpoint_has_the_others():
    kept, again = ScoredTokens(), ScoredTokens()
    for version in range(4):
        kept.add(version, hashes(version, 1), np.array([-1.0, -version]))
    kept.drop_before(2)
    again.load_state_dict(kept.state_dict())
    assert kept.versions == again.versions == [2, 3]
    np.testing.assert_array_equal(again.find(3, hashes(3, 1)), np.array([-1.0, -3.0], np.float32))
