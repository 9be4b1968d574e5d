"""What a machine can run, and what is wrong with a run."""
