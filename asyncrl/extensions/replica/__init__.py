"""A second place for a buffer's ledger, on another machine: nothing is acknowledged before it is there."""
