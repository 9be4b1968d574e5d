"""What tests, benchmarks and `scripts/chaos.py` share: forked processes, faults, machines out of namespaces."""
