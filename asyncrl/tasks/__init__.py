"""The tasks of a run, and how they come into the buffer."""
