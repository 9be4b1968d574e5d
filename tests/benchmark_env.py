"""An environment with programs that evaluate models and do not fit beside the lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.errors import UnavailableError
from asyncrl.extensions.other_evaluators.environments import make_environment

PACKAGES = ("lm-eval[api,ifeval]==0.4.13", "inspect-ai==0.3.285")


def benchmark_python(cache: Path, packages: tuple[str, ...] = PACKAGES, dependencies: bool = True) -> str:
    """Return the environment's interpreter, made in `cache` if need be; skips where packages cannot be fetched.

    dependencies: whether what the packages ask for is installed, too.
    """
    try:
        return str(make_environment(packages, cache, dependencies))
    except UnavailableError as error:
        pytest.skip(str(error))
