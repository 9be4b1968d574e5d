"""Trainer and engines use the same memory by turns."""
