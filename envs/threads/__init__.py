"""Another environment's agent that may spawn threads."""
