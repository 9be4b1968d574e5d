"""The one way from what a policy wrote to whether its final answer is right; see docs/rewards.md."""
