"""Engines that have loaded the version before get what has changed since, instead of the whole file."""
