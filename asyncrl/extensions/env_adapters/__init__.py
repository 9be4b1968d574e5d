"""Environments of other libraries as ours. Importing an adapter does not import its library."""
