"""A real Chromium for tests of pages; a machine without one skips them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asyncrl.errors import ConfigError


@contextmanager
def open_chromium() -> Iterator[Any]:
    """Yield a headless browser, as playwright drives it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    from asyncrl.envs.browser.chromium import find_chromium

    try:
        executable = find_chromium()
    except ConfigError as error:
        pytest.skip(str(error))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
