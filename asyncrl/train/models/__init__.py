"""Models: a causal LM as the trained policy, its log-probabilities, and what optional ways change in its layers."""
