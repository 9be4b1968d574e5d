"""Where sessions run, and how their errors are classified."""
