"""What the tests of other ways of weights have, too."""

from tests.weights.transports.conftest import started

__all__ = ["started"]
