"""Engines that load weights and sample nothing, for the ways that files come to them."""

import contextlib

import pytest

from tests.packages import ImportedWhenUsed

weight_engines = ImportedWhenUsed("scripts.bench.weight_engines")


@pytest.fixture
def started(tmp_path):
    """Starts engines by the names of their machines' folders."""
    with contextlib.ExitStack() as stack:

        def start(*names, process=None):
            engines = [weight_engines.LoadingEngine(tmp_path / name, process) for name in names]
            for engine in engines:
                stack.callback(engine.close)
            return engines

        yield start
