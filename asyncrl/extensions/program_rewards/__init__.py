"""Programs that a policy wrote, judged by tests that they cannot reach; see docs/rewards.md."""
