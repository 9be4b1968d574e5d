"""A run that collapses goes back to a checkpoint."""
