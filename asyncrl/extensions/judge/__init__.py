"""A judge or a reward model scores finished episodes."""
