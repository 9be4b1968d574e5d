"""Rows of data sets: files and the hub's, read through `datasets`, and what of them is prompt, answer and split."""
