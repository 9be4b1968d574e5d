"""Evaluation by other programs: lm-eval and inspect-ai play and judge their own tasks against a served checkpoint."""
