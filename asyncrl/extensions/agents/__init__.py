"""Agents that play episodes through a gateway: programs of others, a user's own, and those that ask from elsewhere."""
