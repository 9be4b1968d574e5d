"""Commitments to hidden states, on polynomials and bit patterns worked out by hand."""

import numpy as np
import pytest

from asyncrl.extensions.commitments import commitment
from asyncrl.extensions.commitments.commitment import (
    CHUNK_TOKENS,
    MAX_BYTES,
    PRIME,
    commit,
    difference,
    encode,
    tokens_of,
)


def drawn(num_tokens=32, width=4096, seed=0):
    return np.random.default_rng(seed).standard_normal((num_tokens, width), np.float32)


def test_a_commitment_is_the_polynomial_through_its_points():
    # 1.0, 2.0 and -1.0 as bfloat16 are 0x3F80, 0x4000 and 0xBF80: 16256, 16384 and 49024. The line through the first
    # two is 16256 + 128 x; the parabola adds c x (x - 1) with 16512 + 2 c = 49024, so c = 16256.
    commitment = encode(3, np.array([0, 1, 2]), np.array([1.0, 2.0, -1.0], np.float32))
    modulus, *coefficients = np.frombuffer(commitment[1:], ">u2").tolist()
    assert (commitment[0], modulus) == (3, PRIME)
    assert coefficients == [16256, (128 - 16256) % PRIME, 16256]


def test_places_that_meet_in_the_field_are_kept_apart_by_a_smaller_modulus():
    commitment = encode(32, np.array([5, 5 + PRIME]), np.array([1.0, 2.0], np.float32))
    assert np.frombuffer(commitment[1:3], ">u2")[0] == PRIME - 1


def test_every_number_of_the_field_but_0_has_its_inverse():
    numbers = np.arange(1, PRIME)
    assert (numbers * commitment._inverses()[1:] % PRIME == 1).all()


def test_values_are_rounded_to_the_nearest_bfloat16_and_ties_to_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF], np.uint32).view(np.float32)
    assert commitment._bfloat16(bits).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80]


def test_32_tokens_of_a_large_model_take_258_bytes_and_one_for_their_number():
    assert len(commit(drawn())) == MAX_BYTES == 259
    assert tokens_of(commit(drawn(7))) == 7


def test_of_a_narrow_model_one_entry_in_sixteen_is_committed_to():
    assert len(commit(drawn(6, 64))) == 3 + 2 * 24
    assert len(commit(drawn(1, 8))) == 3 + 2


def test_own_states_fit_exactly_and_rounded_ones_nearly():
    states = drawn()
    assert difference(commit(states), states) == commitment.Difference(0.0, 0.0, 0.0)
    noisy = states * (1 + np.float32(1e-3) * drawn(seed=1))
    found = difference(commit(states), noisy)
    assert found.exponents < 0.03
    assert 0 < found.mantissa_mean < 0.5


@pytest.mark.parametrize("width", [64, 4096])
def test_other_states_do_not_fit(width):
    assert difference(commit(drawn(width=width)), drawn(width=width, seed=1)).exponents > 0.9


def test_a_mantissa_that_is_off_counts_in_units_of_its_last_bit():
    # One entry of 16 is committed to: 1.0 against 1 + 3/128.
    states, other = np.zeros((1, 16), np.float32), np.zeros((1, 16), np.float32)
    states[0, 4], other[0, 4] = 1.0, 1 + 3 / 128
    assert difference(commit(states), other) == commitment.Difference(0.0, 3.0, 3.0)
    assert difference(commit(states), -states).exponents == 1.0
    assert difference(commit(states), 4 * states).exponents == 1.0


def test_a_commitment_to_fewer_entries_than_the_states_ask_for_fits_nowhere():
    states = drawn(2, 64)
    places = commitment.largest(states)[:4]
    assert difference(encode(2, places, states.ravel()[places]), states).exponents == 1.0


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x01",
        b"\x01\xff\xd9",
        commit(drawn(2, 64))[:-1],
        bytes([0]) + commit(drawn(2, 64))[1:],
        bytes([CHUNK_TOKENS + 1]) + commit(drawn(2, 64))[1:],
        b"\x01\x00\x00\x00\x01",
        b"\x01\xff\xd9\xff\xff",
        commit(drawn()) + b"\x00\x01",
    ],
)
def test_what_cannot_be_a_commitment_is_refused(damaged):
    with pytest.raises(ValueError, match="a commitment has 5 to 259 bytes for 1 to 32 tokens"):
        tokens_of(damaged)
