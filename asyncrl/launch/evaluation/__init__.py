"""Evaluation: held-out tasks, suites, and recorded episodes played again."""
