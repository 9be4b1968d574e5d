"""Commitments to the hidden states that tokens were sampled from, after TOPLOC (arXiv 2501.16007).

For up to 32 tokens sampled one after the other the engine takes the final hidden states, picks the entries of largest
magnitude and sends the polynomial over a prime field through their points (index, value as bfloat16). Whoever has the
same weights and the same tokens computes the states again in one pass and evaluates the polynomial at the places of its
own largest entries: rounding moves a few last bits, while other weights, another prompt or other tokens give values
whose exponents do not fit. Written from the paper in numpy, without the authors' package, which is built for one
version of torch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

COMMITMENTS = "commitments"
"""Key of `Trajectory.extras`: the engine's, as bytes, to the hidden states that the sampled tokens came from: one after
the other, each for the next few."""
CHUNK_TOKENS = 32
"""Tokens of one commitment at most."""
MAX_VALUES = 128
"""Entries that one commitment holds at most."""
ENTRIES_PER_VALUE = 16
"""Entries of the states for each one committed to. It binds only where a few tokens meet a narrow model: were a third
of all entries committed to, those of another model would be the same ones too often."""
PRIME = 65_497
"""Size of the field: the largest prime below the bfloat16 bit patterns that are all NaN."""
MAX_BYTES = 1 + 2 + 2 * MAX_VALUES
_EXPONENT_BITS = 0xFF80
"""Sign and exponent of a bfloat16; the other 7 bits are its mantissa."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far recomputed states are from those committed to."""

    exponents: float
    """Share of the largest entries whose sign or exponent is another one, 0 to 1."""
    mantissa_mean: float
    """Mean difference of the other mantissas, in units of their last bit; 128 where there is none."""
    mantissa_median: float


def num_values(num_tokens: int, width: int) -> int:
    """Return to how many entries of states [num_tokens,width] a commitment is made."""
    return min(MAX_VALUES, max(1, num_tokens * width // ENTRIES_PER_VALUE))


def largest(states: np.ndarray) -> np.ndarray:
    """Return the places [K] of the entries of largest magnitude of `states` [N,H], counted row by row."""
    magnitudes = np.abs(states).ravel()
    k = num_values(*states.shape)
    return np.argpartition(magnitudes, len(magnitudes) - k)[len(magnitudes) - k :]


def commit(states: np.ndarray) -> bytes:
    """Return the commitment to `states` [N,H] float32 of N <= `CHUNK_TOKENS` tokens."""
    places = largest(states)
    return encode(len(states), places, states.ravel()[places])


def encode(num_tokens: int, places: np.ndarray, values: np.ndarray) -> bytes:
    """Return a commitment: the number of tokens (1 byte), the modulus of places and K coefficients (2 bytes each).

    places: [K] distinct; values: [K] float32. Big-endian, lowest coefficient first.
    """
    modulus = _injective_modulus(places)
    bits = np.minimum(_bfloat16(values), PRIME - 1).astype(np.int64)
    numbers = np.concatenate([[modulus], _interpolate(places % modulus, bits)])
    return bytes([num_tokens]) + numbers.astype(">u2").tobytes()


def tokens_of(commitment: bytes) -> int:
    """Return how many tokens a commitment is for. Raises `ValueError` for what cannot be one."""
    numbers = np.frombuffer(commitment[1:], ">u2") if len(commitment) % 2 else np.empty(0, ">u2")
    if (
        not 2 <= len(numbers) <= 1 + MAX_VALUES
        or not 1 <= commitment[0] <= CHUNK_TOKENS
        or not 1 <= numbers[0] <= PRIME
        or numbers[1:].max() >= PRIME
    ):
        raise ValueError(
            f"a commitment has 5 to {MAX_BYTES} bytes for 1 to {CHUNK_TOKENS} tokens, its numbers are below {PRIME}"
        )
    return commitment[0]


def difference(commitment: bytes, states: np.ndarray) -> Difference:
    """Compare a commitment with the recomputed `states` [N,H] float32 of its tokens.

    One to another number of entries than these states ask for fits nowhere.
    """
    numbers = np.frombuffer(commitment[1:], ">u2").astype(np.int64)
    if len(numbers) - 1 != num_values(*states.shape):
        return Difference(1.0, 128.0, 128.0)
    places = largest(states)
    claimed = _evaluate(numbers[1:], places % int(numbers[0]))
    own = np.minimum(_bfloat16(states.ravel()[places]), PRIME - 1).astype(np.int64)
    same = (claimed & _EXPONENT_BITS) == (own & _EXPONENT_BITS)
    if not same.any():
        return Difference(1.0, 128.0, 128.0)
    errors = np.abs(claimed - own)[same]
    return Difference(float(1 - same.mean()), float(errors.mean()), float(np.median(errors)))


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the bit patterns uint16 of float32 `values`, rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _injective_modulus(places: np.ndarray) -> int:
    """Return the largest modulus up to `PRIME` that keeps `places` [K] apart."""
    for modulus in range(PRIME, PRIME // 2, -1):
        if len(np.unique(places % modulus)) == len(places):
            return modulus
    raise ValueError(f"places: no modulus keeps these {len(places)} apart")


def _interpolate(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the coefficients [K] of the polynomial through (x, y), lowest first, by Newton's divided differences."""
    inverses = _inverses()
    newton = y.astype(np.int64) % PRIME
    for k in range(1, len(x)):
        steps = (newton[k:] - newton[k - 1 : -1]) % PRIME
        newton[k:] = steps * inverses[(x[k:] - x[:-k]) % PRIME] % PRIME
    coefficients = np.zeros(len(x), np.int64)
    for k in range(len(x) - 1, -1, -1):
        # Horner's scheme on polynomials: multiply by (X - x_k), then add the next difference.
        shifted = np.concatenate([[0], coefficients[:-1]])
        coefficients = (shifted - x[k] * coefficients) % PRIME
        coefficients[0] = (coefficients[0] + newton[k]) % PRIME
    return coefficients


def _evaluate(coefficients: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the polynomial's values [K] at `x` [K] by Horner's scheme."""
    found = np.zeros(len(x), np.int64)
    for coefficient in coefficients[::-1]:
        found = (found * x + coefficient) % PRIME
    return found


@functools.cache
def _inverses() -> np.ndarray:
    """Return the inverse [PRIME] of each number of the field, 0 for 0: by Fermat, n to the power PRIME - 2."""
    found, power, exponent = np.ones(PRIME, np.int64), np.arange(PRIME, dtype=np.int64), PRIME - 2
    while exponent:
        if exponent & 1:
            found = found * power % PRIME
        power, exponent = power * power % PRIME, exponent >> 1
    return found
