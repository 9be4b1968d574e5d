"""The most frequent answer of a group is the right one, where tasks have no labels."""
