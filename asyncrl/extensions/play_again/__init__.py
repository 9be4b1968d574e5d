"""Repeats what a run has recorded: an episode, or the step of groups that made a loss or gradient NaN."""
