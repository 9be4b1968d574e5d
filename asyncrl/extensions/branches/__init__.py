"""Episodes that branch where the policy was uncertain."""
