"""What the tests of the launcher have, too."""

from tests.launch.conftest import process_group

__all__ = ["process_group"]
