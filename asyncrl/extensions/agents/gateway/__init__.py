"""The gateway's core: conversations in any API's shape to token-exact trees, and trees to trajectories."""
