"""Recorded episodes of an expert, on which a policy is trained without their environment."""
