import pytest

from tests.buffer.serving import ThreadService


@pytest.fixture
def service(tmp_path):
    """A buffer that is served in this process."""
    served = ThreadService(tmp_path)
    yield served
    served.close()
