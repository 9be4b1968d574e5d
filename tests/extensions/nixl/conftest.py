"""What the tests of all ways of weights have."""

from tests.loading_engines import started

__all__ = ["started"]
