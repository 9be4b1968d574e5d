"""Where what costs time to make is kept between commands."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return where base models and what is known of rows are kept between runs: `ASYNCRL_CACHE`, or `.cache` in the
    working directory."""
    return Path(os.environ.get("ASYNCRL_CACHE", ".cache"))
