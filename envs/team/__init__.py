"""A main agent that asks others."""
