"""Episodes whose agents work at once, and a reward for a short critical path."""
