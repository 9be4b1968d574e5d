"""Opponents: past versions of the policy, and an exploiter."""
