"""Single-turn environments for tasks of benchmark files, which `asyncrl.extensions.benchmarks.importers` reads."""
