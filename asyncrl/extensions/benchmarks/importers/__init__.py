"""Readers of benchmark files that people have, one format a module: each line becomes a task of an environment."""
