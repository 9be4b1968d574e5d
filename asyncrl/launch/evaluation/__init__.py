"""Evaluation of held-out tasks, during training and by the command."""
