"""The session's engine, as the services' tests have it."""

from tests.services.conftest import check_agreement, publish_weights

__all__ = ["check_agreement", "publish_weights"]
