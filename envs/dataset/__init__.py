"""The rows of a data set as single-turn tasks (docs/data.md)."""
