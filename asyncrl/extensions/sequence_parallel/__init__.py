"""Rows divided over ranks of the trainer."""
