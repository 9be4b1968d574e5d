"""Checkpoints compared on suites and data sets: samples, statistics, reports, and one page of all evaluations."""
