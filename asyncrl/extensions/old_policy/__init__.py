"""Log-probabilities under the version that sampled a token, computed again."""
