"""Single-turn environments for tasks of benchmark files, which `asyncrl.evaluation.importers` reads."""
