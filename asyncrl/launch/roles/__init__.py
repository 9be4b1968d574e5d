"""The roles of a run as processes, and changes of their number."""
