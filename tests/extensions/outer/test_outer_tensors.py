"""Bodies of values in 32, 8 or 4 bits: who encodes one knows what its receivers read."""

import numpy as np
import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.outer.tensors import body_bytes, decode, encode

RNG = np.random.default_rng(0)
VALUES = {
    "layer.weight": RNG.normal(size=(30, 17)).astype(np.float32),
    "norm": RNG.normal(size=7).astype(np.float32),
    "scale": np.float32(3.0).reshape(()),
}
SHAPES = {name: one.shape for name, one in VALUES.items()}


@pytest.mark.parametrize(("bits", "worst"), [(32, 0.0), (8, 0.5 / 127), (4, 0.5 / 7)])
def test_receivers_read_what_the_sender_was_told(bits, worst):
    body, read = encode(VALUES, bits)
    found = decode(body, SHAPES, bits)
    assert all(np.array_equal(found[name], read[name]) for name in VALUES)
    for name, one in VALUES.items():
        assert found[name].shape == one.shape
        assert np.abs(found[name] - one).max() <= worst * np.abs(one).max() + 1e-7
    assert len(body) <= body_bytes(SHAPES, bits)


def test_a_body_of_other_bits_is_refused():
    body, _ = encode(VALUES, 8)
    with pytest.raises(InputError, match=r"layer\.weight"):
        decode(body, SHAPES, 32)
    with pytest.raises(InputError, match=r"layer\.weight\.codes: must be uint8"):
        decode(body, SHAPES, 4)
