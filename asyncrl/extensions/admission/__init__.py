"""The buffer decides how many groups it admits beyond a batch."""
