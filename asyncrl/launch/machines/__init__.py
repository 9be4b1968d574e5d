"""Machines of a run: which there are, what runs on each, and how processes get there."""
