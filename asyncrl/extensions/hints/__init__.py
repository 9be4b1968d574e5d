"""Episodes that are given their first turns."""
