"""A greedy episode as the baseline of a group."""
