"""Runs at learning rate 0, in which nothing may move."""
