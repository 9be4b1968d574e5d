"""On-policy distillation: a teacher scores what the policy sampled."""
