"""What the tests, the studies and the benchmarks share: runs on one engine, faults, and what a run may leave behind."""
