"""Running episodes: messages to tokens, turns, groups, and the loop of a rollout worker."""
