"""The length of an answer enters its reward."""
